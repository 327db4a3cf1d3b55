"""The keys of a configuration: for a terminal, as a page in Markdown, and for editors."""

import re
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
_INTRODUCTION = """\
# Configuration

<!-- Written by `make docs-reference` from the models of the tables; not to be edited. -->

A configuration is a TOML file. `extends = "other.toml"`, above its first table, names another
file, whose path is relative to this one and whose keys this one replaces one by one.
`--set TABLE.KEY=VALUE` replaces a value on the command line. Unknown keys, and values outside their
limits, are errors that name file, key and limits. Values that contradict each other are errors,
too; `dynapipe-hpc plan CONFIG` finds them without a run.

`dynapipe-hpc config KEY` prints what is below on a terminal. `dynapipe-hpc config --schema` prints
a [JSON Schema](https://json-schema.org), with which an editor completes keys and marks wrong ones.
Write it to `config.schema.json` beside the configuration, which `#:schema config.schema.json` as
its first line connects with it in Taplo, Tombi and VS Code's Even Better TOML.

A key without a default may be left out unless it is required; what descriptions say of None then
holds. A required key may be in the file that `extends` names; those of `[model]` may be left out if
`model.init_from` names a model. 2^53 means 2 to the power of 53.

A table of several variants has a section for each; the key that chooses is in its heading. Left
out, `family` is "gpt" and `rule` is "dynamic".

[Examples](configuration_examples.md) use every key that no file in `configs/` uses.
"""
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


def config_page() -> str:
    """A section per table; of one with several variants, what they have in common comes once."""
    seen: dict[str, set[str]] = {}
    sections = [_page_section(each, seen.setdefault(each.path, set())) for each in key_tables()]
    return "\n".join([_INTRODUCTION, *sections])


def _page_section(table: KeyTable, seen: set[str]) -> str:
    # The heading names the key that chooses a variant.
    chosen = [key for key in table.keys if f"{key.name} = {key.value}" in table.heading]
    lines = [f"## `{table.heading}`", "", _escaped(table.text), ""]
    rows = {_page_row(key): key.name for key in table.keys if key not in chosen}
    new = [row for row in rows if row not in seen]
    if new:
        lines += ["| key | value | default | unit | |", "|---|---|---|---|---|", *new, ""]
    if as_above := [f"`{name}`" for row, name in rows.items() if row in seen]:
        lines += [f"As above: {', '.join(as_above)}.", ""]
    seen.update(new)
    return "\n".join(lines)


def _page_row(key: ConfigKey) -> str:
    default = f"`{key.default}`" if key.default not in ("", REQUIRED) else key.default
    cells = (f"`{key.name}`", _escaped(key.value), default, key.unit, _escaped(key.text))
    return f"| {' | '.join(cells)} |".replace("  |", " |")


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*\[\]|<])", r"\\\1", p) for p in parts)


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
