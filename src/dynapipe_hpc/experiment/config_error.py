"""Error messages for a configuration: wrong values, and the values allowed instead."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dynapipe_hpc.data.did_you_mean import did_you_mean
from dynapipe_hpc.data.errors import quoted
from dynapipe_hpc.experiment.config_keys import KeyTable, key_tables, one_of

Tables = dict[str, Any]


class Source(NamedTuple):
    """A file with a colon, or an option, and the values that it gives, table by table."""

    name: str
    tables: Tables

    def says(self, keys: Sequence[str]) -> bool:
        """Whether this source gives a value for the key."""
        node: Any = self.tables
        for key in keys:
            if not isinstance(node, dict):
                return True  # an entry of a list
            if key not in node:
                return False
            node = node[key]
        return True


def explain(path: Path, sources: Sequence[Source], tables: Tables, error: ValidationError) -> str:
    """A line per error of the merged `tables`: file or option, key, value, and those allowed.

    `sources` ascend in priority; `path` is named if an error spans keys or a key is missing.
    """
    # That a list is too short follows from errors of its entries.
    errors = [e for e in error.errors() if not (e["type"] == "too_short" and e["input"])]
    lines = [_explain(path, sources, tables, each) for each in errors]
    return "\n".join(dict.fromkeys(lines))  # kinds to choose from have an error each


def _explain(path: Path, sources: Sequence[Source], tables: Tables, detail: ErrorDetails) -> str:
    keys, chosen = _spelled(tables, detail)
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind in ("truth", "union_tag_invalid"):  # found in a table, before its keys are looked at
        last = context.get("key") or context["discriminator"].strip("'")
        keys, value = (*keys, last), value[last]
    key = ".".join(keys)
    source = next((each.name for each in reversed(sources) if each.says(keys)), f"{path}:")
    names = [part for part in keys if not part.isdigit()]
    variants = [t for t in key_tables() if t.path == ".".join(names[:-1])]
    match kind:
        case "extra_forbidden":
            return f"{source} {_unknown(keys, value, variants, chosen)}"
        case "missing" if isinstance(detail["loc"][-1], str):
            return f"{path}: {key} is missing"
        case "union_tag_not_found":
            return f"{path}: {key}.{context['discriminator'].strip(chr(39))} is missing"
        case "value_error":
            where = f"{path}: {key}".removesuffix(": ")
            return f"{where}{_shown(value)}: {context['error']}"
    words = _allowed(names[-1], variants, chosen)
    if keys[-1].isdigit():
        words = re.sub(r"^a list.*?, each (entry )?", "", words)
    hint = did_you_mean(value, re.findall(r"'([^']*)'", words))
    return f"{source} {key}{_shown(value)}: must be {words}{hint}"


def _spelled(tables: Tables, detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    """Keys as the file spells them, and the variant that was chosen of the last table, if any.

    In the location of an error, a variant is one more key, and so is the kind of a value.
    """
    node: Any = tables
    keys, chosen = list[str](), ""
    *_, last = detail["loc"] or ("",)
    for key in detail["loc"]:
        is_missing = detail["type"] == "missing" and key == last
        if isinstance(node, dict) and isinstance(key, str) and (key in node or is_missing):
            node = node.get(key)
            keys.append(key)
        elif isinstance(node, list | tuple) and isinstance(key, int) and key < len(node):
            node = node[key]
            keys.append(str(key))
        elif isinstance(node, dict):
            chosen = str(key)
    return tuple(keys), chosen


def _unknown(keys: Sequence[str], value: object, variants: Sequence[KeyTable], chosen: str) -> str:
    name, key = keys[-1], ".".join(keys)
    owners = [each for each in variants if any(k.name == name for k in each.keys)]
    if chosen and owners:
        tag = owners[0].tag
        return (
            f"{key}{_shown(value)}: {tag} is '{chosen}', and only "
            f"{_quoted(one_of([each.chosen for each in owners]))} has this key; leave it out, or "
            f"change {tag}"
        )
    path = "".join(f"{part}." for part in keys[:-1] if not part.isdigit())
    inside = [t.path.removeprefix(path) for t in key_tables() if t.path.startswith(path)]
    known = [k.name for each in variants if each.chosen in ("", chosen) for k in each.keys]
    known += [each for each in inside if "." not in each]
    hint = did_you_mean(name, known) or f"; known keys here: {', '.join(dict.fromkeys(known))}"
    return f"unknown key '{key}'{hint}"


def _allowed(name: str, variants: Sequence[KeyTable], chosen: str) -> str:
    """The values that a key may have, in words; its table may have a variant that is chosen."""
    for table in sorted(variants, key=lambda each: each.chosen != chosen):
        if name == table.tag:
            return _quoted(one_of([each.chosen for each in variants]))
        for key in table.keys:
            if key.name == name:
                return _quoted(key.value) + (f", in {key.unit}" if key.unit else "")
    return "a table"


def _quoted(words: str) -> str:
    return words.replace('"', "'")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    return f" = {quoted(value)}" if isinstance(value, str | int | float | list) else ""
