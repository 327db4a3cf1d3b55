"""Parts of pipeline stages, and the sizes of the boundaries between them."""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.planner.cost.cost_model import FloatArray

STAGE = "stage"
"""Kind of part that stands for what a pass takes besides the parts of a stage."""


def parts_of_stages(shape: ModelShape, placement: Placement) -> dict[str, FloatArray]:
    """Numbers of parts by kind, shape (n_stages,); `STAGE` occurs once on each."""
    held = placement.parts(shape)
    counts = {kind: np.array([float(parts[kind]) for parts in held]) for kind in held[0]}
    return {**counts, STAGE: np.ones(placement.n_stages)}


def boundary_sizes(shape: ModelShape, placement: Placement, n_stream_shards: int = 1) -> FloatArray:
    """Numbers that a shard sends on per input (or only) and target token, shape (n_stages, 2)."""
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
