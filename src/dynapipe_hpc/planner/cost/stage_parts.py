"""Parts of pipeline stages, tokens that pass through them, and boundaries between stages."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Amount, Boundary, Side
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes


class Tokens(NamedTuple):
    """Tokens of micro-batches, padding included; arrays that broadcast to one shape."""

    own_tokens: FloatArray
    source: FloatArray
    pairs: FloatArray  # pairs of an own token and one that it attends to
    own_pairs: FloatArray  # pairs of own tokens of the same row
    square: FloatArray  # pairs of own tokens in a single row
    far_pairs: FloatArray  # pairs of own tokens of the same row that a window keeps apart
    masked_square: FloatArray  # like `square`, if the row is longer than the window

    @classmethod
    def from_shapes(cls, side: Side, shapes: Shapes, window: float = np.inf) -> "Tokens":
        """Tokens of a part on some side, shape (n_microbatches,); see `Part.window`."""
        if side is Side.INPUTS:  # whatever the targets
            shapes = shapes._replace(target_tokens=np.zeros(()))
        sizes = np.broadcast_arrays(*(np.asarray(of, np.float64) for of in shapes))
        counts = _kernels.token_counts(side, window, *(np.ravel(of) for of in sizes))
        return cls(*counts.T.reshape(-1, *sizes[0].shape))

    def times(self, amount: Amount) -> FloatArray:
        """Value of an amount for these tokens."""
        products = (of * per for of, per in zip(self, amount, strict=True) if per)
        return sum(products, start=np.zeros_like(self.own_tokens))


STAGE = "stage"
"""Kind of part that stands for what a pass takes besides the parts of a stage."""


def parts_of_stages(shape: ModelShape, placement: Placement) -> dict[str, FloatArray]:
    """Numbers of parts by kind, shape (n_stages,); `STAGE` occurs once on each."""
    held = placement.parts(shape)
    counts = {kind: np.array([float(parts[kind]) for parts in held]) for kind in held[0]}
    return {**counts, STAGE: np.ones(placement.n_stages)}


def boundary_sizes(shape: ModelShape, placement: Placement, n_stream_shards: int = 1) -> FloatArray:
    """Numbers that a shard sends per row token and per target token, shape (n_stages, 2)."""
    of_pairs = [each is Boundary.PAIR for each in placement.boundaries(shape)]
    width = shape.hidden_size / n_stream_shards
    sizes: FloatArray = width * np.stack([np.ones(placement.n_stages), of_pairs], 1)
    sizes[-1] = 0
    return sizes


class StageKinds(NamedTuple):
    """Kinds of stages: many stages are alike."""

    counts: Mapping[str, FloatArray]
    kind_of_stage: npt.NDArray[np.int32]
    boundaries: FloatArray  # per kind, bytes per token that a stage hands over, shape (n_kinds, 2)

    @classmethod
    def from_counts(cls, counts: Mapping[str, FloatArray], boundaries: FloatArray) -> Self:
        """Groups stages that hold the same layers and hand over equally many bytes.

        `counts`: Number of layers on every stage by kind, shape (n_stages,). `boundaries`: Bytes
        per token that a stage hands over, shape (n_stages, 2).
        """
        held = np.stack([*counts.values(), *boundaries.T])
        distinct, kinds = np.unique(held, axis=1, return_inverse=True)
        of_kind = dict(zip(counts, distinct[:-2], strict=True))
        return cls(of_kind, kinds.reshape(-1).astype(np.int32), distinct[-2:].T.copy())
