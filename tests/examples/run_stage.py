"""A stage of a model run to what training makes of it."""

from typing import Any

from torch import Tensor

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.training.objective import weighted_tokens


def run_stage(
    stage: StageOfFamily, activation: Tensor | None, batch: Any, mode: Recompute = Recompute.NONE
) -> Tensor:
    """The activation for the next stage; on the last stage, the weighted loss."""
    output = stage.run(activation, batch, mode)
    return weighted_tokens(output, batch.tokens) if stage.is_last else output
