"""Writes docs/configuration.md: the keys of a configuration as a page in Markdown.

python -m tests.configuration_page
"""

import re
from pathlib import Path

from dynapipe_hpc.experiment.config_keys import REQUIRED, ConfigKey, KeyTable, key_tables

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
_INTRODUCTION = """\
# Configuration

<!-- Written by `make docs-reference` from the models of the tables; not to be edited. -->

A configuration is a TOML file. `extends = "other.toml"`, above its first table, names another
file, whose path is relative to this one and whose keys this one replaces one by one.
`--set TABLE.KEY=VALUE` replaces a value on the command line. Unknown keys, and values outside their
limits, are errors that name file, key and limits. Values that contradict each other are errors,
too; `dynapipe-hpc plan CONFIG` finds them without a run.

`dynapipe-hpc config KEY` prints what is below on a terminal.

A key without a default may be left out unless it is required; what descriptions say of None then
holds. A required key may be in the file that `extends` names; those of `[model]` may be left out if
`model.init_from` names a model. Numbers of bytes may be strings such as "80GB" or "512MiB".

A table of several variants has a section for each; the key that chooses is in its heading. Left
out, `family` is "gpt" and `rule` is "dynamic".

[Examples](configuration_examples.md) use every key that no file in `configs/` uses.
"""


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
        lines += ["| key | value | default | |", "|---|---|---|---|", *new, ""]
    if as_above := [f"`{name}`" for row, name in rows.items() if row in seen]:
        lines += [f"As above: {', '.join(as_above)}.", ""]
    seen.update(new)
    return "\n".join(lines)


def _page_row(key: ConfigKey) -> str:
    default = f"`{key.default}`" if key.default not in ("", REQUIRED) else key.default
    cells = (f"`{key.name}`", _escaped(key.value), default, _escaped(key.text))
    return f"| {' | '.join(cells)} |".replace("  |", " |")


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*\[\]|<])", r"\\\1", p) for p in parts)


if __name__ == "__main__":
    PAGE.write_text(config_page(), encoding="utf-8")
