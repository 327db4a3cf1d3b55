"""Correspondence of a weight and the tensors of Hugging Face that hold its numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


class Piece(NamedTuple):
    """Rows of a weight that come from one tensor of Hugging Face.

    Attributes:
        start: Index of the first of these rows in the tensor.
        at: Index of the first of these rows in the weight.
    """

    source: str
    start: int
    at: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A weight of an unsplit model, and the tensors of Hugging Face that it consists of.

    Attributes:
        name: Name of the weight in our model.
        shape: Shape of the weight.
        sources: Number of rows of the weight in each tensor of Hugging Face, by the name of the
            tensor; they are joined along the first dimension, in this order.
        transposed: Whether Hugging Face stores (inputs, outputs), as its `Conv1D` does.
        is_stack: Whether the weight is a stack of matrices, whose rows count as those of one
            matrix, one after the other: the experts of a layer.
    """

    name: str
    shape: tuple[int, ...]
    sources: Mapping[str, int]
    transposed: bool = False
    is_stack: bool = False

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of Hugging Face, by name."""
        rest = self.shape[2 if self.is_stack else 1 :]
        shapes = {name: (n_rows, *rest) for name, n_rows in self.sources.items()}
        return {n: shape[::-1] if self.transposed else shape for n, shape in shapes.items()}

    @property
    def as_matrix(self) -> "TensorMap":
        """The same weight with the rows of a stack as those of one matrix."""
        if not self.is_stack:
            return self
        n, rows, *rest = self.shape
        return replace(self, shape=(n * rows, *rest), is_stack=False)

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """Pieces of which rows `start` to `stop` of the weight consist."""
        first = 0
        for source, n_rows in self.sources.items():
            begin, end = max(start, first), min(stop, first + n_rows)
            if begin < end:
                yield Piece(source, begin - first, begin, end - begin)
            first += n_rows


def same(name: str, shape: tuple[int, ...], source: str) -> TensorMap:
    """A weight that is one tensor of Hugging Face."""
    return TensorMap(name, shape, {source: shape[0]})


def conv1d(name: str, source: str, n_outputs: int, n_inputs: int) -> Iterator[TensorMap]:
    """Weight and bias of a linear map that is a `Conv1D` of Hugging Face."""
    sources = {f"{source}.weight": n_outputs}
    yield TensorMap(f"{name}.weight", (n_outputs, n_inputs), sources, transposed=True)
    yield same(f"{name}.bias", (n_outputs,), f"{source}.bias")
