"""All keys of a configuration, described in words: for messages, the terminal and docs."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tomli_w

from dynapipe_hpc.data.did_you_mean import did_you_mean
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig

REQUIRED = "required"
_LIMITS = {
    "exclusiveMinimum": "> {}",
    "minimum": "≥ {}",
    "exclusiveMaximum": "< {}",
    "maximum": "≤ {}",
    "multipleOf": "a multiple of {}",
    "minLength": "of {} or more characters",
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
    "flops_per_ms": "FLOP per ms",
    "bytes_per_ms": "bytes per ms",
    "_ms": "ms",
    "_s": "s",
    "_bytes": "bytes, or text such as 80GB or 512MiB",
    "tokens_per_batch": "tokens",
    "tokens_per_microbatch": "tokens",
    "tokens": "tokens",
    "iterations": "iterations",
}
_LARGE = re.compile(r"\d{6,}")

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of a configuration; its value, unit and description in words."""

    name: str
    value: str
    default: str  # as in TOML; empty if the key is left out by default
    unit: str
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
    """All tables of a configuration; a table before those inside it."""
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
    value = _LARGE.sub(lambda match: _short(int(match[0])), _described(schema))
    default = REQUIRED if is_required else _toml(schema["default"])
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return ConfigKey(name, value, default, unit, schema["description"])


def _resolved(schema: Schema) -> Schema:
    members = list(_members(schema))
    return {**schema, **members[0]} if len(members) == 1 else schema


def _members(schema: Schema) -> Iterator[Schema]:
    """Schemas of a union, except null and text in place of a number; else the schema alone."""
    if "$ref" in schema:
        yield config_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            if each != {"type": "null"} and not each.get("pattern"):
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
        return _one_of(schema.get("enum") or [schema["const"]])
    kind = schema.get("type", "")
    if kind == "array":
        entry = _described(_entry(schema))
        if entries := schema.get("prefixItems"):
            return f"a list of {len(entries)} entries, each {entry}"
        least = schema.get("minItems")
        return f"a list{f' of at least {least} entry' if least else ''}, each entry {entry}"
    words = _WORDS.get(kind, "of another kind")
    if schema.get("format") == "path":
        words = "a path in quotes"
    if schema.get("infinite"):
        words = "a number"
    limits = " and ".join(
        # Integral limits of floating-point numbers are written without a decimal point.
        words.format(int(number) if number == int(number) else number)
        for name, words in _LIMITS.items()
        if (number := schema.get(name)) is not None
    )
    return f"{words} {limits}".strip()


def _one_of(values: Sequence[object]) -> str:
    """Values as a list in words, with "or" before the last."""
    *others, last = [repr(value).replace("'", '"') for value in values]
    return f"{', '.join(others)} or {last}" if others else last


def _short(number: int) -> str:
    for rest, end in ((0, ""), (1, " - 1")):
        if (number + rest).bit_count() == 1:
            return f"2^{(number + rest).bit_length() - 1}{end}"
    return f"{number:.0e}".replace("e+0", "e").replace("e+", "e")


def _toml(value: Any) -> str:
    if value is None:
        return ""
    if value == {}:
        return "{}"
    text = " ".join(tomli_w.dumps({"x": value}).split()).removeprefix("x = ")
    return text.replace("[ ", "[").replace(", ]", "]")


_WIDTH = 100


def describe_keys(name: str = "") -> Iterator[str]:
    """Lines on all tables, on the named one and those inside it, or on the named key."""
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
        default = {REQUIRED: "(required)", "": "(left out)"}.get(key.default, key.default)
        yield f"{key.name} = {default}  # {key.value}{f', {key.unit}' if key.unit else ''}"
        yield from textwrap.wrap(
            f"{key.text.partition('. ')[0].rstrip('.')}.",
            _WIDTH,
            initial_indent="    ",
            subsequent_indent="    ",
        )
