"""Base class of the tables of a configuration file, and sizes in bytes in them."""

import inspect
import re
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

_ENTRY = re.compile(r"^(\w+): ((?:.*)(?:\n {4,}.*)*)", re.MULTILINE)


class ConfigTable(BaseModel):
    """A frozen, typed TOML table: unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _check_bools_only_where_allowed(cls, table: Any) -> Any:
        for key, value in table.items() if isinstance(table, dict) else ():
            field = cls.model_fields.get(key)
            allowed = (field.annotation, *get_args(field.annotation)) if field else (bool,)
            if isinstance(value, bool) and bool not in allowed:
                raise PydanticCustomError("truth", "{key} is not a truth value", {"key": key})
        return table

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema of the table, with descriptions from its docstring and those of its bases."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        for each in reversed(cls.__mro__):
            text, _, attributes = (inspect.getdoc(each) or "").partition("Attributes:\n")
            schema["description"] = _one_line(text)
            attributes, _, _ = attributes.partition("\n\n")
            for key, entry in _ENTRY.findall(inspect.cleandoc(f"\n{attributes}")):
                if key in schema["properties"]:
                    schema["properties"][key]["description"] = _one_line(entry)
        return schema


def _one_line(text: str) -> str:
    return " ".join(text.split())


_POWERS = {prefix: power for power, prefix in enumerate(" kmgt")}
_UNIT = r"([kKmMgGtT][iI]?)?[bB]?"
_WRITTEN = re.compile(rf"\s*(\d{{1,20}})(?:\.(\d{{1,20}}))?\s*{_UNIT}\s*", re.ASCII)


def _parse_bytes(value: object) -> object:
    """Number of bytes that a text such as 1.5GiB stands for; any other value unchanged."""
    written = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        return value
    prefix, decimals = (written[3] or " ").lower(), written[2] or ""
    factor = (1024 if prefix.endswith("i") else 1000) ** _POWERS[prefix[0]]
    size, rest = divmod(int(written[1] + decimals) * factor, 10 ** len(decimals))
    return value if rest else size


WRITTEN = {"type": "string", "pattern": rf"^\s*\d+(\.\d+)?\s*{_UNIT}\s*$"}
"""JSON Schema of a text with a unit."""


class _OrWritten:
    """Note for JSON schemas that text with a unit is allowed besides an integer."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(core_schema), WRITTEN]}


Bytes = Annotated[int, BeforeValidator(_parse_bytes), _OrWritten()]
"""Number of bytes: an integer, or text with a unit in powers of 1000 (kB, MB, GB, TB, or just k, M,
G, T) or 1024 (KiB, MiB, GiB, TiB, or Ki, Mi, Gi, Ti), in letters of either case."""
