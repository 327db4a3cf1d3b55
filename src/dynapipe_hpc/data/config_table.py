"""One table of a configuration file."""

from pydantic import BaseModel, ConfigDict


class ConfigTable(BaseModel):
    """A frozen, typed TOML table in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
