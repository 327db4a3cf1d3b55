"""The keys of a configuration: for a terminal, and for editors."""

import textwrap
from collections.abc import Iterator
from typing import Any

from dynapipe_hpc.data.did_you_mean import did_you_mean
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config_keys import (
    REQUIRED,
    ConfigKey,
    KeyTable,
    config_schema,
    key_tables,
)

_WIDTH = 100
_EXTENDS = {
    "type": "string",
    "minLength": 1,
    "description": "File whose keys this one replaces, relative to this one.",
}


def describe_keys(name: str = "") -> Iterator[str]:
    """Lines on all tables, on the named one and those inside it, or on the named key."""
    tables = [
        table for table in key_tables() if not name or f"{table.path}.".startswith(f"{name}.")
    ]
    keys = [
        (table, key) for table in key_tables() for key in table.keys if table.full_name(key) == name
    ]
    if not tables and not keys:
        raise InputError(f"unknown key '{name}'{did_you_mean(name, _names())}; see config alone")
    if not keys:
        yield from "\n\n".join("\n".join(_listing(table)) for table in tables).splitlines()
    for table, key in keys:
        yield f"{table.full_name(key)}, in {table.heading}"
        yield f"  value    {key.value}"
        yield f"  unit     {key.unit}" if key.unit else "  unit     none"
        yield f"  default  {key.default or 'left out'}"
        yield from textwrap.wrap(key.text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _names() -> list[str]:
    paths = [table.path for table in key_tables()]
    return paths + [table.full_name(key) for table in key_tables() for key in table.keys]


def _listing(table: KeyTable) -> Iterator[str]:
    yield table.heading
    yield from textwrap.wrap(table.text, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    for key in table.keys:
        yield f"{key.name} = {_default(key)}  # {key.value}{f', {key.unit}' if key.unit else ''}"
        yield from textwrap.wrap(
            f"{key.text.partition('. ')[0].rstrip('.')}.",
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="    ",
        )


def _default(key: ConfigKey) -> str:
    return {REQUIRED: "(required)", "": "(left out)"}.get(key.default, key.default)


def editor_schema() -> dict[str, Any]:
    """JSON schema of configuration files: their keys, and the limits of values.

    No key is required, because a file that this one extends may have it; and a table may fit
    several variants, because that file may choose among them.
    """
    relaxed: dict[str, Any] = _relaxed(config_schema())
    relaxed["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    relaxed["properties"]["extends"] = _EXTENDS
    return relaxed


def _relaxed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_relaxed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        "anyOf" if key == "oneOf" else key: _relaxed(value)
        for key, value in schema.items()
        # Under one of these names, a key of a table has a schema, not a list or text.
        if not (key in ("required", "title") and not isinstance(value, dict))
        and not (key == "discriminator" and "propertyName" in value)
    }
