"""Rows of tables, which give every object the fields of all others of their column."""

from collections.abc import Mapping
from typing import Any


def without_padding(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose objects have no fields that are null; columns that are null stay."""
    return {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_nulls(each) for name, each in value.items() if each is not None}
        case list():
            return [_without_nulls(each) for each in value]
        case _:
            return value
