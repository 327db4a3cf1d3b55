"""Check that a model has positions for samples."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE, padded, row_lengths


def check_rows(samples: Sequence[Sample], shape: ModelShape, multiple: int = ROW_MULTIPLE) -> None:
    """Refuses samples that need longer rows than the model allows."""
    rows = padded(np.stack(row_lengths(samples, shape.has_target_rows)), multiple)
    too_long = np.flatnonzero((rows > shape.max_tokens).any(axis=0))
    if too_long.size:
        sample = samples[too_long[0]]
        raise InputError(
            f"sample {too_long[0]} of {sample.describe()} "
            f"needs rows of up to {rows[:, too_long[0]].max()}, but model.max_tokens is "
            f"{shape.max_tokens}; raise it, or cut long samples"
        )
