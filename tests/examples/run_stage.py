"""A stage of a model run to what training makes of it."""

from torch import Tensor

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.training.objective import weighted_tokens


def run_stage(
    stage: StageOfFamily, activation: Tensor | None, batch: Batch, mode: Recompute = Recompute.NONE
) -> Tensor:
    """The activation for the next stage; on the last stage, the weighted loss."""
    output = stage.run(activation, batch, mode)
    if not stage.is_last:
        return output
    assert batch.labels is not None
    return weighted_tokens(output, batch.labels)
