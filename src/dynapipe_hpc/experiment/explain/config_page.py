"""The reference of a configuration's keys, as a page in Markdown."""

import re

from dynapipe_hpc.experiment.config_keys import REQUIRED, ConfigKey, KeyTable, key_tables

_INTRODUCTION = """\
# Configuration

<!-- Written by `make docs-reference` from the models of the tables; not to be edited. -->

A configuration is a TOML file. `extends = "other.toml"`, its first line, names a file whose keys
it replaces one by one; the path is relative to the file. `--set TABLE.KEY=VALUE` replaces a value
on the command line. Unknown keys, and values outside their limits, are errors that name file, key
and limits; so are values that do not go together, as `dynapipe-hpc plan CONFIG` would say.

`dynapipe-hpc config KEY` prints what is below on a terminal. `dynapipe-hpc config --schema` prints
a [JSON Schema](https://json-schema.org), with which an editor completes keys and marks wrong ones.
Write it to `config.schema.json` beside the configuration, which `#:schema config.schema.json` as
its first line connects with it in Taplo, Tombi and VS Code's Even Better TOML.

A key without a default may be left out unless it is required; descriptions call that None. 2^53 is
a power.

[Examples](configuration_examples.md) use every key that no file in `configs/` uses.
"""


def config_page() -> str:
    """The page, with a section for each table."""
    return "\n".join([_INTRODUCTION, *map(_section, key_tables())])


def _section(table: KeyTable) -> str:
    lines = [f"## `{table.heading}`", "", _escaped(table.text), ""]
    if table.keys:
        lines += ["| key | value | default | unit | |", "|---|---|---|---|---|"]
        lines += [_row(key) for key in table.keys]
        lines.append("")
    return "\n".join(lines)


def _row(key: ConfigKey) -> str:
    default = f"`{key.default}`" if key.default not in ("", REQUIRED) else key.default
    cells = (f"`{key.name}`", _escaped(key.value), default, key.unit, _escaped(key.text))
    return f"| {' | '.join(cells)} |".replace("  |", " |")


def _escaped(text: str) -> str:
    """Text without what Markdown takes for markup, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*\[\]|<])", r"\\\1", p) for p in parts)
