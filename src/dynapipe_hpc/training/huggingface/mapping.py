"""Mapping of a model type: its Hugging Face settings and tensors, and their equivalents here."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from dynapipe_hpc.architecture.transformers import config_of
from dynapipe_hpc.data.errors import InputError, quoted

DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}
"""Types of numbers that can be read: torch's names by the names of safetensors."""
_MISSING = object()
DTYPE_KEYS = ("dtype", "torch_dtype")
"""Names of the setting with the type, in newer and older versions of `transformers`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a model, as `config.json` names them."""

    path: Path
    values: Mapping[str, Any]  # values by name; a value of null counts as absent

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a setting; the default if it is absent."""
        value = self.values.get(name)
        return default if value is None else value

    def completed(self, *names: str) -> Self:
        """The same settings, with their class's values of any `names` that the file leaves out."""
        absent = [name for name in names if name not in self.values]
        if not absent:
            return self
        config = config_of(self.values)
        class_values = {name: getattr(config, name, None) for name in absent}
        return replace(self, values={**self.values, **class_values})

    def integer(self, name: str, default: int | None = None) -> int:
        """Number that must be a positive integer."""
        value = self.get(name, default)
        if type(value) is not int or value < 1:
            raise InputError(f"{self.path}: '{name}' is {quoted(value)}, not a positive integer")
        return value

    def number(self, name: str, default: float = 0.0) -> float:
        """Number that must be positive."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(f"{self.path}: '{name}' is {quoted(value)}, not a positive number")
        return float(value)

    def share(self, name: str, default: float) -> float:
        """Number from 0 up to, but not including, 1."""
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
        """The type of the weights; None if no type is named, or it is left to the files."""
        key = next((key for key in DTYPE_KEYS if self.get(key) is not None), None)
        value = self.get(key) if key else "auto"
        if value == "auto":
            return None
        name = value.removeprefix("torch.") if isinstance(value, str) else ""
        if name not in DTYPES.values():
            raise InputError(
                f"{self.path}: '{key}' is {quoted(value)}, which is not supported; set it to "
                f"the type of the weights: {', '.join(DTYPES.values())}"
            )
        return name

    def require(self, name: str, *allowed: object) -> None:
        """Checks that a setting is absent or has one of the allowed values."""
        value = self.get(name, _MISSING)
        if value is not _MISSING and value not in allowed:
            shown = " or ".join(quoted(each) for each in allowed)
            raise InputError(
                f"{self.path}: '{name}' is {quoted(value)}, but only {shown} is supported; "
                "choose another model"
            )


class Piece(NamedTuple):
    """Rows of a weight that come from one Hugging Face tensor."""

    source: str
    start: int  # index of the first of these rows in the tensor
    at: int  # index of the first of these rows in the weight
    n_rows: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A weight of an unsplit model, and the Hugging Face tensors that it consists of.

    `sources`: Number of rows of the weight in each Hugging Face tensor, by the name of the tensor;
    the tensors are joined along the first dimension, in this order. `is_stack`: Whether the weight
    is a stack of matrices (the experts of a layer), whose rows are numbered through as if it were
    one matrix.
    """

    name: str
    shape: tuple[int, ...]
    sources: Mapping[str, int]
    transposed: bool = False  # whether Hugging Face stores (inputs, outputs), as its `Conv1D` does
    is_stack: bool = False

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the Hugging Face tensors, by name."""
        rest = self.shape[2 if self.is_stack else 1 :]
        shapes = {name: (n_rows, *rest) for name, n_rows in self.sources.items()}
        return {n: shape[::-1] if self.transposed else shape for n, shape in shapes.items()}

    @property
    def as_matrix(self) -> "TensorMap":
        """The same weight, with a stack of matrices joined as one."""
        if not self.is_stack:
            return self
        n, rows, *rest = self.shape
        return replace(self, shape=(n * rows, *rest), is_stack=False)

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """Pieces that make up rows `start` to `stop` of the weight."""
        first = 0
        for source, n_rows in self.sources.items():
            begin, end = max(start, first), min(stop, first + n_rows)
            if begin < end:
                yield Piece(source, begin - first, begin, end - begin)
            first += n_rows


def same(name: str, shape: tuple[int, ...], source: str) -> TensorMap:
    """A weight that is one Hugging Face tensor."""
    return TensorMap(name, shape, {source: shape[0]})


Values = dict[str, Any]  # of a JSON object, or of the [model] table
LONGEST = 2**24
"""Maximum length of a row that the [model] table allows, in tokens."""


def sizes_of(settings: Settings, names: Mapping[str, str]) -> dict[str, int]:
    """Sizes by our names, from settings, or defaults of their class, with Hugging Face names."""
    complete = settings.completed(*names.values())
    return {ours: complete.integer(theirs) for ours, theirs in names.items()}


@dataclass(frozen=True, slots=True)
class ModelTypeMapping:
    """Mapping of a `model_type` of Hugging Face.

    Attributes:
        prefix: Prefix of tensor names, which files of the model without a head leave out.
        model: Function that turns settings into values of the [model] table; it refuses settings
            that the family does not compute.
        config: Function that turns a model into values of `config.json`; like the functions
            below, it takes shapes of the family.
        dropout: Function that turns a model into the values of `config.json` on dropout; a run's
            dropout may differ from that of the model that it began with.
        copies: Function that lists tensors that a file may hold although they are copies: by the
            name of each copy, the name of its original.
        ignored: Pattern of the names of tensors that may be in files and are not weights.
        longest: Function that returns the largest row length that may be set in place of the one
            in the settings; None if weights depend on the length, so that it must not change.
    """

    model_type: str
    architecture: str
    family: str
    model: Callable[[Settings], Values]
    config: Callable[[Any], Values]
    tensors: Callable[[Any], Iterable[TensorMap]]
    copies: Callable[[Any], Mapping[str, str]]
    ignored: re.Pattern[str]
    longest: Callable[[Settings], int | None]
    prefix: str = ""
    dropout: Callable[[Any], Values] = lambda _: {}
    fits: Callable[[Any], bool] = lambda _: True
