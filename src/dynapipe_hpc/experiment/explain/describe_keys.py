"""The keys of a configuration, as text for a terminal."""

import textwrap
from collections.abc import Iterator

from dynapipe_hpc.data.did_you_mean import did_you_mean
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config_keys import REQUIRED, ConfigKey, KeyTable, key_tables

_WIDTH = 100


def describe_keys(name: str = "") -> Iterator[str]:
    """Lines on all tables, on one and those inside it, or on one key.

    Args:
        name: Table or key, such as planner.cost or planner.cost.path; empty for all.

    Raises:
        InputError: There is no such table or key; names the nearest one.
    """
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
