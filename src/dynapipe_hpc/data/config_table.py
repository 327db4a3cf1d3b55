"""Base class of the tables of a configuration file."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


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
                raise PydanticCustomError("truth", "{key} is no truth value", {"key": key})
        return table
