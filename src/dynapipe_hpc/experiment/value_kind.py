"""Kinds of values that a configuration key may have, in words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_LIMITS = {
    "gt": "greater than",
    "ge": "greater than or equal to",
    "lt": "less than",
    "le": "less than or equal to",
    "multiple_of": "a multiple of",
}
_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "text in quotes",
    Path: "a path in quotes",
}
# By suffix of the key, the longest first.
_UNITS = {
    "_per_ms": "per millisecond",
    "_ms": "in milliseconds",
    "_s": "in seconds",
    "_bytes": "in bytes, or text with a unit, such as 80GB, 80GiB or 512MiB",
}
TAGS = ("kind", "rule", "family")
"""Keys whose value selects a variant of a table."""


class ValueKind:
    """The declared type of a key, or of an entry of its list.

    Attributes:
        table: Type of the table, if the value is one; None otherwise.
        variants: Types of tables to choose from, by the value of one of `TAGS`.
        choices: Values of an enumeration, also of one among alternatives; empty if there is none.
        alternatives: Kinds to choose from, if they are not tables.
    """

    def __init__(self, declared: Any) -> None:
        """Reads a type, an annotated one, or a field of a table."""
        self._type, self._metadata = _unpacked(declared)
        members = [each for each in get_args(self._type) if each is not NoneType]
        if NoneType in get_args(self._type):
            self._type, inner = _unpacked(members[0])
            self._metadata = [*self._metadata, *inner]
            members = list(get_args(self._type))
        self.table = self._type if _is_table(self._type) else None
        tables = [each for each in members if _is_table(each)]
        several = tables if len(tables) > 1 else []
        self.variants: Mapping[str, type[BaseModel]] = {_tag(table): table for table in several}
        is_union = get_origin(self._type) in (Union, UnionType)
        self.alternatives = [ValueKind(each) for each in members if is_union and not tables]
        is_choice = get_origin(self._type) is Literal
        of_alternatives = tuple(choice for each in self.alternatives for choice in each.choices)
        self.choices: tuple[Any, ...] = get_args(self._type) if is_choice else of_alternatives
        self._may_be_infinite = any(getattr(note, "allow_inf_nan", 0) for note in self._metadata)

    def inside(self, key: int | str) -> "ValueKind":
        """The kind of a key of this table, or of an entry of this list."""
        if self.table and key in self.table.model_fields:
            return ValueKind(self.table.model_fields[str(key)])
        entries = get_args(self._type)
        return ValueKind(entries[0] if get_origin(self._type) is tuple else Any)

    def describe(self, key: str) -> str:
        """Words that complete "must be ...".

        Args:
            key: Name of the key; its suffix is the unit.
        """
        if self.alternatives:
            return " or ".join(each.describe(key) for each in self.alternatives)
        if self.choices:
            return one_of(self.choices)
        if self.table or self.variants or get_origin(self._type) is dict:
            return "a table"
        if get_origin(self._type) is tuple:
            return self._describe_list(key)
        limits = " and ".join(_limits(self._metadata))
        unit = next((unit for end, unit in _UNITS.items() if key.endswith(end)), "")
        is_number = self._type in (int, float)
        words = "a number" if self._may_be_infinite else _WORDS.get(self._type, "of another kind")
        return " ".join(filter(None, [words, limits])) + (f", {unit}" if is_number and unit else "")

    def _describe_list(self, key: str) -> str:
        entry, *others = get_args(self._type)
        least = [note.min_length for note in self._metadata if _is_least(note)]
        each = ValueKind(entry).describe(key)
        if Ellipsis not in others:
            return f"a list of {1 + len(others)} entries, each {each}"
        return f"a list{f' of at least {least[0]} entry' if least else ''}, each entry {each}"


def one_of(values: Sequence[object]) -> str:
    """Values as a list in words, with "or" before the last."""
    *others, last = [repr(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last


def _unpacked(declared: Any) -> tuple[Any, list[Any]]:
    """A type without its annotations, and these."""
    if isinstance(declared, FieldInfo):
        return declared.annotation, declared.metadata
    if get_origin(declared) is Annotated:
        bare, *notes = get_args(declared)
        inner = [note.metadata if isinstance(note, FieldInfo) else [note] for note in notes]
        return bare, [each for notes in inner for each in notes]
    return declared, []


def _limits(metadata: Sequence[Any]) -> list[str]:
    found = [
        (words, getattr(note, name, None)) for name, words in _LIMITS.items() for note in metadata
    ]
    # Integral limits of floating-point numbers are written without a decimal point.
    numbers = [(words, int(n) if n == int(n) else n) for words, n in found if n is not None]
    lengths = [note.min_length for note in metadata if _is_least(note)]
    return [f"{words} {number}" for words, number in numbers] + [
        f"of at least {length} character" for length in lengths
    ]


def _is_least(note: object) -> bool:
    return getattr(note, "min_length", None) is not None


def _is_table(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel)


def _tag(table: type[BaseModel]) -> str:
    """The value that selects a variant of a table."""
    (field,) = [table.model_fields[name] for name in TAGS if name in table.model_fields]
    return str(get_args(field.annotation)[0])
