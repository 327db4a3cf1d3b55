"""Settings of a Hugging Face model: the values of its `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.training.huggingface.weight_files import DTYPES

_MISSING = object()
DTYPE_KEYS = ("dtype", "torch_dtype")
"""Setting with the type, in newer and older versions of `transformers`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a model, as `config.json` names them.

    Attributes:
        values: Values by name; a value of null counts as absent.
    """

    path: Path
    values: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a setting; the default if it is absent."""
        value = self.values.get(name)
        return default if value is None else value

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """The same settings, with values of those that the file leaves out; null is a value."""
        return replace(self, values={**defaults, **self.values})

    def integer(self, name: str, default: int | None = None) -> int:
        """Number that must be a positive integer."""
        value = self.get(name, default)
        if type(value) is not int or value < 1:
            raise InputError(f"{self.path}: '{name}' is {quoted(value)}, not a positive integer")
        return value

    def number(self, name: str, default: float) -> float:
        """Number that must be positive."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(f"{self.path}: '{name}' is {quoted(value)}, not a positive number")
        return float(value)

    def share(self, name: str, default: float) -> float:
        """Number from 0 up to 1, which is excluded."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputError(f"{self.path}: '{name}' is {quoted(value)}, not a number below 1")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Boolean value."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.path}: '{name}' is {quoted(value)}, not true or false")
        return value

    @property
    def dtype(self) -> str | None:
        """The type of the weights; None if none is named, or it is left to the files."""
        key = next((key for key in DTYPE_KEYS if self.get(key) is not None), None)
        value = self.get(key) if key else "auto"
        if value == "auto":
            return None
        name = value.removeprefix("torch.") if isinstance(value, str) else ""
        if name not in DTYPES.values():
            raise InputError(
                f"{self.path}: '{key}' is {quoted(value)}, which is not supported, only "
                f"{', '.join(DTYPES.values())}; enter the type of the weights there"
            )
        return name

    def require(self, name: str, *allowed: object) -> None:
        """Checks that a setting is absent or has a value that our models compute."""
        value = self.get(name, _MISSING)
        if value is not _MISSING and value not in allowed:
            shown = " or ".join(quoted(each) for each in allowed)
            raise InputError(
                f"{self.path}: '{name}' is {quoted(value)}, which is not supported, only {shown}; "
                "choose another model"
            )
