"""All keys of a configuration, as its tables declare them."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.value_kind import TAGS, ValueKind

REQUIRED = "required"
_SIGNS = {
    "greater than or equal to": "≥",
    "less than or equal to": "≤",
    "greater than": ">",
    "less than": "<",
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
_ENTRY = re.compile(r"^(\w+): ((?:.*)(?:\n {4,}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of a configuration.

    Attributes:
        name: Name within its table.
        value: Type and limits of the value, in words.
        default: Default as in TOML; empty if the key is left out by default, `REQUIRED` if it
            has none.
        unit: Unit of the value; empty without one.
        text: Description, one paragraph.
    """

    name: str
    value: str
    default: str
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class KeyTable:
    """A table of a configuration, or one of the variants of a table.

    Attributes:
        path: Keys that lead to it, joined by dots.
        heading: Heading in a file, with the key that selects the variant.
        text: Description, one paragraph.
        keys: Keys of the table itself, without tables inside.
    """

    path: str
    heading: str
    text: str
    keys: tuple[ConfigKey, ...]

    def full_name(self, key: ConfigKey) -> str:
        """Name of one of its keys, from the root of the configuration."""
        return f"{self.path}.{key.name}"


@cache
def key_tables() -> tuple[KeyTable, ...]:
    """All tables of a configuration; a table before those inside it."""
    tables = (
        table
        for name, field in ExperimentConfig.model_fields.items()
        for table in _tables(name, ValueKind(field))
    )
    return tuple(dict.fromkeys(tables))  # what is inside several variants is one table


def models() -> Iterator[type[BaseModel]]:
    """The models of all tables and variants."""
    waiting: list[type[BaseModel]] = [ExperimentConfig]
    while waiting:
        model = waiting.pop()
        yield model
        for field in model.model_fields.values():
            waiting += _inside(ValueKind(field))


def texts_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Descriptions of the keys of a table, one paragraph each, from its docstring."""
    texts: dict[str, str] = {}
    for each in reversed(model.__mro__):
        _, _, attributes = (inspect.getdoc(each) or "").partition("Attributes:\n")
        attributes, _, _ = attributes.partition("\n\n")
        texts |= {
            key: _one_line(text) for key, text in _ENTRY.findall(inspect.cleandoc(attributes))
        }
    return {key: text for key, text in texts.items() if key in model.model_fields}


def _inside(kind: ValueKind) -> list[type[BaseModel]]:
    """Models of a value that is a table, one of several, or a list of tables."""
    if kind.variants:
        return list(kind.variants.values())
    table = kind.table or kind.inside(0).table
    return [table] if table else []


def _tables(path: str, kind: ValueKind) -> Iterator[KeyTable]:
    for model in _inside(kind):
        heading = f"[{path}]" if kind.table or kind.variants else f"[[{path}]]"
        tag = next((tag for tag, each in kind.variants.items() if each is model), None)
        if tag is not None:
            key = next(key for key in TAGS if key in model.model_fields)
            heading = f'{heading} {key} = "{tag}"'
        fields = {name: ValueKind(field) for name, field in model.model_fields.items()}
        keys = tuple(
            _key(model, name, model.model_fields[name])
            for name, inner in fields.items()
            if not _inside(inner)
        )
        yield KeyTable(path, heading, _text_of(model), keys)
        for name, inner in fields.items():
            yield from _tables(f"{path}.{name}", inner)


def _key(model: type[BaseModel], name: str, field: FieldInfo) -> ConfigKey:
    value = ValueKind(field).describe("").replace("'", '"')
    for words, sign in _SIGNS.items():
        value = value.replace(words, sign)
    value = _LARGE.sub(lambda match: _short(int(match[0])), value)
    default = REQUIRED if field.is_required() else _toml(field.get_default())
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return ConfigKey(name, value, default, unit, texts_of(model)[name])


def _short(number: int) -> str:
    """A large limit as a power, where it is one or is one less."""
    for rest, end in ((0, ""), (1, " - 1")):
        if (number + rest).bit_count() == 1:
            return f"2^{(number + rest).bit_length() - 1}{end}"
    return f"{number:.0e}".replace("e+0", "e").replace("e+", "e")


def _toml(value: Any) -> str:
    if value is None:
        return ""
    if value == {}:
        return "{}"
    plain = str(value) if isinstance(value, Path) else value
    written = tomli_w.dumps({"x": list(plain) if isinstance(plain, tuple) else plain})
    return _one_line(written.strip().removeprefix("x = ")).replace("[ ", "[").replace(", ]", "]")


def _text_of(model: type[BaseModel]) -> str:
    text, _, _ = (inspect.getdoc(model) or "").partition("Attributes:\n")
    return _one_line(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
