"""Base class of the tables of a configuration file."""

import inspect
import re
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
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
                raise PydanticCustomError(
                    "truth", "Input should not be true or false", {"key": key}
                )
        return table

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The schema of the table, with descriptions from the docstrings of its class and bases."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        for each in reversed(cls.__mro__):
            text, _, attributes = (inspect.getdoc(each) or "").partition("Attributes:\n")
            schema["description"] = _one_line(text)
            attributes, _, _ = attributes.partition("\n\n")
            for key, entry in _ENTRY.findall(inspect.cleandoc(f"\n{attributes}")):
                if key in schema["properties"]:
                    schema["properties"][key]["description"] = _one_line(entry)
        for schema_of_key in schema["properties"].values():
            # Of a size in bytes, pydantic leaves limits beside the text or number that it may be.
            for limit, name in (("ge", "minimum"), ("le", "maximum")):
                if limit in schema_of_key:
                    schema_of_key["anyOf"][1][name] = schema_of_key.pop(limit)
        return schema


def _one_line(text: str) -> str:
    return " ".join(text.split())
