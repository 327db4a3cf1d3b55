"""What is wrong with a value of a configuration, and what may be there instead."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dynapipe_hpc.data.config_table import TRUTH
from dynapipe_hpc.data.errors import quoted
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.value_kind import ValueKind, did_you_mean, one_of


class _Place(NamedTuple):
    """Where an error is.

    Attributes:
        keys: Names as the file spells them; entries of lists have numbers.
        kind: What may be there.
        table: Table that holds the last key; None for entries of lists.
    """

    keys: tuple[str, ...]
    kind: ValueKind
    table: type[BaseModel] | None


def explain(path: Path, error: ValidationError) -> str:
    """A line per mistake: file, key, value and what may be there."""
    return "\n".join(_explain(path, each) for each in error.errors() if not _follows(each))


def _follows(detail: ErrorDetails) -> bool:
    """Whether an error says that a list is short because its entries are wrong."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _explain(path: Path, detail: ErrorDetails) -> str:
    location, value = detail["loc"], detail["input"]
    if detail["type"] == TRUTH:  # found in a table, before its keys are looked at
        key = detail["ctx"]["key"]
        location, value = (*location, key), value[key]
    place = _find(location)
    where = f"{path}: {'.'.join(place.keys)}" if place.keys else f"{path}"
    match detail["type"]:
        case "extra_forbidden":
            key, names = place.keys[-1], list(place.table.model_fields) if place.table else []
            hint = did_you_mean(key, names) or f"; known keys here: {', '.join(names)}"
            return f"{path}: unknown key '{'.'.join(place.keys)}'{hint}"
        case "missing" if place.table:
            return f"{where} is missing"
        case "missing":  # an entry of a list of fixed length
            return _explain(path, {**detail, "type": "too_short", "loc": location[:-1]})
        case "union_tag_invalid":
            return f"{where}.{_wrong_variant(detail, place.kind)}"
        case "value_error":
            return f"{where}{_shown(detail['input'])}: {detail['ctx']['error']!s}"
    hint = did_you_mean(value, place.kind.choices)
    return f"{where}{_shown(value)}: must be {place.kind.describe(place.keys[-1])}{hint}"


def _wrong_variant(detail: ErrorDetails, kind: ValueKind) -> str:
    """The key that chooses between variants of a table."""
    key, tags = detail["ctx"]["discriminator"].strip("'"), list(kind.variants)
    tag = detail["input"][key]
    return f"{key}{_shown(tag)}: must be {one_of(tags)}{did_you_mean(tag, tags)}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    return f" = {quoted(value)}" if isinstance(value, str | int | float | list) else ""


def _find(location: Sequence[int | str]) -> _Place:
    """Follows an error's location, in which a chosen variant is one more key than in the file."""
    place = _Place((), ValueKind(ExperimentConfig), None)
    for key in location:
        kind = place.kind
        if key in kind.variants:
            place = _Place(place.keys, ValueKind(kind.variants[str(key)]), None)
            continue
        place = _Place((*place.keys, str(key)), kind.inside(key), kind.table)
    return place
