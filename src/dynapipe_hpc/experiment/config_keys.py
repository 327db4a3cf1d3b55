"""All keys of a configuration, from its JSON Schema: for messages, the terminal and docs."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tomli_w

from dynapipe_hpc.data.errors import InputError, did_you_mean
from dynapipe_hpc.experiment.config import ExperimentConfig

REQUIRED = "required"
_LIMITS = {
    "exclusiveMinimum": "> {:,}",
    "minimum": "≥ {:,}",
    "exclusiveMaximum": "< {:,}",
    "maximum": "≤ {:,}",
    "multipleOf": "a multiple of {:,}",
    "minLength": "of {:,} or more characters",
    "minItems": "of {:,} or more entries",
    "maxItems": "of at most {:,} entries",
}

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of a configuration; the types and limits of its values are named as in JSON Schema."""

    name: str
    value: str
    default: str  # as in TOML; empty if the key is left out by default
    text: str


@dataclass(frozen=True, slots=True)
class KeyTable:
    """A table of a configuration, or the variant of a table that the value of a tag chooses.

    Tables inside it are not among its keys.
    """

    path: str
    heading: str
    text: str
    keys: tuple[ConfigKey, ...]
    tag: str = ""
    chosen: str = ""

    def full_name(self, key: ConfigKey) -> str:
        return f"{self.path}.{key.name}"


@cache
def config_schema() -> Schema:
    """The JSON Schema that pydantic derives from the tables of a configuration."""
    return ExperimentConfig.model_json_schema()


@cache
def key_tables() -> tuple[KeyTable, ...]:
    """All tables of a configuration; a table before the tables inside it."""
    roots = config_schema()["properties"].items()
    tables = (table for name, schema in roots for table in _tables(name, schema))
    return tuple(dict.fromkeys(tables))  # a table inside several variants counts once


def _tables(path: str, schema: Schema) -> Iterator[KeyTable]:
    schema = _resolved(schema)
    entry = _resolved(_entry(schema))
    is_list = "properties" in entry
    heading = f"[[{path}]]" if is_list else f"[{path}]"
    choice = schema.get("discriminator", {"propertyName": "", "mapping": {}})
    tag, value_of = choice["propertyName"], {ref: each for each, ref in choice["mapping"].items()}
    for variant in schema.get("oneOf", [entry if is_list else schema]):
        value, table = value_of.get(variant.get("$ref"), ""), _resolved(variant)
        if "properties" not in table:
            continue
        required, properties = table.get("required", []), table["properties"].items()
        keys = tuple(
            _key(name, inner, is_required=name in required)
            for name, inner in properties
            if not any(_tables(name, inner))
        )
        shown = f'{heading} {tag} = "{value}"' if value else heading
        yield KeyTable(path, shown, table["description"], keys, tag, value)
        for name, inner in properties:
            yield from _tables(f"{path}.{name}", inner)


def _key(name: str, schema: Schema, *, is_required: bool) -> ConfigKey:
    schema = _resolved(schema)
    default = REQUIRED if is_required else _toml(schema["default"])
    return ConfigKey(name, _described(schema), default, schema["description"])


def _resolved(schema: Schema) -> Schema:
    members = list(_members(schema))
    return {**schema, **members[0]} if len(members) == 1 else schema


def _members(schema: Schema) -> Iterator[Schema]:
    """Schemas of a union, except null; only the schema itself if it is no union."""
    if "$ref" in schema:
        yield config_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            if each != {"type": "null"}:
                yield from _members(each)
    else:
        yield schema


def _entry(schema: Schema) -> Schema:
    entry: Schema = schema.get("items") or schema.get("prefixItems", [{}])[0]
    return entry


def _described(schema: Schema) -> str:
    schema = _resolved(schema)
    members = list(_members(schema))
    if len(members) > 1:
        return " or ".join(map(_described, members))
    if "const" in schema or "enum" in schema:
        return ", ".join(map(json.dumps, schema.get("enum") or [schema["const"]]))
    limits = [
        # Integral limits of floating-point numbers are written without a decimal point.
        words.format(int(number) if number == int(number) else number)
        for name, words in _LIMITS.items()
        if (number := schema.get(name)) is not None
    ]
    words = " ".join((schema.get("format") or schema.get("type", "any"), " and ".join(limits)))
    entries = f" with entries: {_described(_entry(schema))}" if _entry(schema) else ""
    return f"{words.strip()}{entries}"


def _toml(value: Any) -> str:
    if value is None:
        return ""
    if value == {}:
        return "{}"
    text = " ".join(tomli_w.dumps({"x": value}).split()).removeprefix("x = ")
    return text.replace("[ ", "[").replace(", ]", "]")


def describe_keys(name: str = "") -> Iterator[str]:
    every = [(table, key) for table in key_tables() for key in table.keys]
    shown = [
        each
        for each in every
        if not name or f"{each[0].full_name(each[1])}.".startswith(f"{name}.")
    ]
    if not shown:
        names = [name for table, key in every for name in (table.path, table.full_name(key))]
        raise InputError(f"unknown key '{name}'{did_you_mean(name, names)}; see config alone")
    heading = ""
    for table, key in shown:
        if table.heading != heading:
            yield from ("",) * bool(heading)
            heading = table.heading
            yield from (heading, *_wrapped(table.text, "# "))
        yield f"{key.name} = {key.default or 'left out'}  # {key.value}"
        yield from _wrapped(key.text, "    ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)
