"""Kinds of values that a configuration key may have, in words."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Self

from dynapipe_hpc.data.byte_size import WRITTEN
from dynapipe_hpc.experiment.config import ExperimentConfig

Schema = Mapping[str, Any]

_LIMITS = {
    "exclusiveMinimum": "greater than {}",
    "minimum": "greater than or equal to {}",
    "exclusiveMaximum": "less than {}",
    "maximum": "less than or equal to {}",
    "multipleOf": "a multiple of {}",
    "minLength": "of at least {} character",
}
_WORDS = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a finite number",
    "string": "text in quotes",
    "object": "a table",
}
# By suffix of the key, the longest first.
_UNITS = {
    "_per_ms": "per millisecond",
    "_ms": "in milliseconds",
    "_s": "in seconds",
    "_bytes": "in bytes, or text with a unit, such as 80GB, 80GiB or 512MiB",
}


@cache
def config_schema() -> Schema:
    """The JSON Schema that pydantic derives from the tables of a configuration."""
    return ExperimentConfig.model_json_schema()


class ValueKind:
    """The values that a key, or an entry of its list, may have."""

    def __init__(self, schema: Schema) -> None:
        members = list(_members(schema))
        self.schema = {**schema, **members[0]} if len(members) == 1 else schema
        self.alternatives = [ValueKind(each) for each in members] if len(members) > 1 else []
        discriminator = self.schema.get("discriminator", {"propertyName": "", "mapping": {}})
        self.tag: str = discriminator["propertyName"]
        value_of = {name: value for value, name in discriminator["mapping"].items()}
        self.variants = {
            value_of[each["$ref"]]: ValueKind(each) for each in self.schema.get("oneOf", [])
        }

    @classmethod
    def of_config(cls) -> Self:
        """The kind of a configuration: the table of its tables."""
        return cls(config_schema())

    @cached_property
    def keys(self) -> Mapping[str, "ValueKind"]:
        """Kinds of the keys of a table that has certain keys."""
        return {name: ValueKind(each) for name, each in self.schema.get("properties", {}).items()}

    @cached_property
    def entry(self) -> "ValueKind":
        """The kind of the entries of a list."""
        return ValueKind(self.schema.get("items") or self.schema.get("prefixItems", [{}])[0])

    @property
    def choices(self) -> Sequence[Any]:
        """Values of an enumeration, also of one among alternatives; empty if there is none."""
        if "const" in self.schema:
            return [self.schema["const"]]
        if "enum" in self.schema:
            return tuple(self.schema["enum"])
        return [choice for each in self.alternatives for choice in each.choices]

    def describe(self, key: str) -> str:
        """Words that complete "must be ..."."""
        if self.alternatives:
            return " or ".join(each.describe(key) for each in self.alternatives)
        if self.choices:
            return one_of(self.choices)
        if self.variants:
            return "a table"
        kind = self.schema.get("type", "")
        if kind == "array":
            return self._describe_list(key)
        words = _WORDS.get(kind, "of another kind")
        if self.schema.get("format") == "path":
            words = "a path in quotes"
        if self.schema.get("infinite"):
            words = "a number"
        limits = " and ".join(_limits(self.schema))
        unit = next((unit for end, unit in _UNITS.items() if key.endswith(end)), "")
        is_number = kind in ("integer", "number")
        return " ".join(filter(None, [words, limits])) + (f", {unit}" if is_number and unit else "")

    def _describe_list(self, key: str) -> str:
        entry = self.entry.describe(key)
        if entries := self.schema.get("prefixItems"):
            return f"a list of {len(entries)} entries, each {entry}"
        least = self.schema.get("minItems")
        return f"a list{f' of at least {least} entry' if least else ''}, each entry {entry}"


def one_of(values: Sequence[object]) -> str:
    """Values as a list in words, with "or" before the last."""
    *others, last = [repr(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last


def _members(schema: Schema) -> Iterator[Schema]:
    """Schemas of a union without null and what is written for a number; else the schema alone."""
    if "$ref" in schema:
        yield config_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            if each != {"type": "null"} and each != WRITTEN:
                yield from _members(each)
    else:
        yield schema


def _limits(schema: Schema) -> Iterator[str]:
    for name, words in _LIMITS.items():
        if name in schema:
            number = schema[name]
            # Integral limits of floating-point numbers are written without a decimal point.
            yield words.format(int(number) if number == int(number) else number)
