"""Error messages for a configuration: wrong values, and the values allowed instead."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dynapipe_hpc.data.did_you_mean import did_you_mean
from dynapipe_hpc.data.errors import quoted
from dynapipe_hpc.experiment.value_kind import ValueKind, one_of

Tables = dict[str, Any]
_REMOVED = {
    "planner.cost.element_bytes": "it follows from training.dtype; set that, and leave this out",
    "planner.cost.state_factor": "it follows from training.optimizer and training.dtype, or is in "
    "the cost table; leave it out",
    "planner.search.refinement": "it follows from planner.search.effort; set that, and leave this "
    "out",
    "report.wandb_mode": "set WANDB_MODE in the environment, and leave this out",
}
"""Replacements of keys of older versions."""


class Source(NamedTuple):
    """A file or an option, and the values that it gives."""

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


class _Place(NamedTuple):
    """Place of an error in the configuration."""

    keys: tuple[str, ...]
    kind: ValueKind
    table: ValueKind
    union: ValueKind | None = None
    chosen: str = ""

    @property
    def owners(self) -> list[str]:
        """Variants of the table that have the last key."""
        variants = self.union.variants if self.union else {}
        return [value for value, each in variants.items() if self.keys[-1] in each.keys]


def explain(path: Path, sources: Sequence[Source], error: ValidationError) -> str:
    """A line per error: file or option, key, value, and the values allowed."""
    errors = [each for each in error.errors() if not _follows(each)]
    lines = [_explain(path, sources, each) for each in errors]
    return "\n".join(dict.fromkeys(lines))  # kinds to choose from have an error each


def _follows(detail: ErrorDetails) -> bool:
    """Whether an error of a list that is too short follows from errors of its entries."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _explain(path: Path, sources: Sequence[Source], detail: ErrorDetails) -> str:
    place, value = _look_up(detail)
    key = ".".join(place.keys)
    source = next((each.name for each in reversed(sources) if each.says(place.keys)), f"{path}:")
    match detail["type"]:
        case "extra_forbidden" if key in _REMOVED:
            return f"{source} {key}: there is no such key any more: {_REMOVED[key]}"
        case "extra_forbidden" if owners := place.owners:
            tag = place.union.tag if place.union else ""
            return (
                f"{source} {key}{_shown(value)}: {tag} is {place.chosen!r}, and only "
                f"{one_of(owners)} has this key; leave it out, or change {tag}"
            )
        case "extra_forbidden":
            names = list(place.table.keys)
            hint = did_you_mean(place.keys[-1], names) or f"; known keys here: {', '.join(names)}"
            return f"{source} unknown key '{key}'{hint}"
        case "missing" if isinstance(detail["loc"][-1], str):
            return f"{path}: {key} is missing"
        case "union_tag_not_found":
            tag = detail["ctx"]["discriminator"].strip("'")
            return f"{path}: {key}.{tag} is missing"
        case "value_error":
            where = f"{path}: {key}".removesuffix(": ")
            return f"{where}{_shown(value)}: {detail['ctx']['error']}"
    hint = did_you_mean(value, place.kind.choices)
    return f"{source} {key}{_shown(value)}: must be {place.kind.describe(place.keys[-1])}{hint}"


def _look_up(detail: ErrorDetails) -> tuple[_Place, object]:
    """The key that caused the error, and its value."""
    location, value = detail["loc"], detail["input"]
    match detail["type"]:
        case "truth":  # found in a table, before its keys are looked at
            key = detail["ctx"]["key"]
            return _find((*location, key)), value[key]
        case "union_tag_invalid":
            key = detail["ctx"]["discriminator"].strip("'")
            union = _find(location)
            choices = ValueKind({"enum": list(union.kind.variants)})
            return _Place((*union.keys, key), choices, union.kind), value[key]
        case "missing" if isinstance(location[-1], int):  # in a list of fixed length
            return _find(location[:-1]), value
    return _find(location), value


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    return f" = {quoted(value)}" if isinstance(value, str | int | float | list) else ""


def _find(location: Sequence[int | str]) -> _Place:
    """Follows an error's location, in which a chosen variant is one more key than in the file."""
    root = ValueKind.of_config()
    place, union, chosen = _Place((), root, root), None, ""
    for key in map(str, location):
        kind = place.kind
        if kind.alternatives:  # the key is one of them
            continue
        if key in kind.variants:
            union, chosen = kind, key
            place = place._replace(kind=kind.variants[key])
            continue
        place = _Place((*place.keys, key), kind.keys.get(key, kind.entry), kind, union, chosen)
        union, chosen = None, ""
    return place
