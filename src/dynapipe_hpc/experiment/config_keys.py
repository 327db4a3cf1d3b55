"""All keys of a configuration, as its tables declare them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import tomli_w

from dynapipe_hpc.experiment.value_kind import ValueKind

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


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of a configuration."""

    name: str
    value: str
    default: str  # as in TOML; empty if the key is left out by default
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class KeyTable:
    """A table of a configuration, or one of the variants of a table."""

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
        table for name, kind in ValueKind.of_config().keys.items() for table in _tables(name, kind)
    )
    return tuple(dict.fromkeys(tables))  # what is inside several variants is one table


def _tables(path: str, kind: ValueKind) -> Iterator[KeyTable]:
    """The tables that a value is or may be, or that are entries of its list, and those inside."""
    heading = f"[[{path}]]" if kind.entry.keys else f"[{path}]"
    for value, table in kind.variants.items() or [("", kind.entry if kind.entry.keys else kind)]:
        if not table.keys:
            continue
        yield KeyTable(
            path,
            f'{heading} {kind.tag} = "{value}"' if value else heading,
            table.schema["description"],
            tuple(
                _key(name, inner, is_required=name in table.schema.get("required", []))
                for name, inner in table.keys.items()
                if not any(_tables(name, inner))
            ),
        )
        for name, inner in table.keys.items():
            yield from _tables(f"{path}.{name}", inner)


def _key(name: str, kind: ValueKind, *, is_required: bool) -> ConfigKey:
    value = kind.describe("").replace("'", '"')
    for words, sign in _SIGNS.items():
        value = value.replace(words, sign)
    value = _LARGE.sub(lambda match: _short(int(match[0])), value)
    default = REQUIRED if is_required else _toml(kind.schema["default"])
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return ConfigKey(name, value, default, unit, kind.schema["description"])


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
    text = " ".join(tomli_w.dumps({"x": value}).split()).removeprefix("x = ")
    return text.replace("[ ", "[").replace(", ]", "]")
