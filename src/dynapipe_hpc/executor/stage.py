"""Protocol of a pipeline stage, as the executor uses it."""

from typing import Protocol, TypeVar

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.training.counters import StageReport

Tensor = TypeVar("Tensor")


class Stage(Protocol[Tensor]):
    """Pipeline stage: the layers of one rank.

    Contract: the stages of a pipeline, run on the micro-batches of a batch in any valid
    order, give the loss and gradients of the unsplit model.
    """

    def load(self, index: int, microbatch: MicroBatch) -> None:
        """Reads the tokens of a micro-batch if this stage needs them."""
        ...

    def forward(
        self, index: int, activation: Tensor | None, *, split_backward: bool = False
    ) -> Tensor | None:
        """Runs the layers and keeps what backward needs.

        Args:
            index: The micro-batch.
            activation: Activation of the previous stage, see `Boundary.shape`; None on the first
                stage.
            split_backward: Whether `backward_weight` will follow `backward`.

        Returns:
            The activation for the next stage; None on the last stage, which accumulates its loss.
        """
        ...

    def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Accumulates this micro-batch's weight gradients and frees what forward kept.

        If `forward` was called with `split_backward`, weight gradients may wait for
        `backward_weight`; until then the stage keeps no more memory than before.

        Args:
            index: The micro-batch.
            gradient: Gradient of the activation that `forward` returned; None on the last stage.

        Returns:
            The gradient of the activation received; None on the first stage.
        """
        ...

    def backward_weight(self, index: int) -> None:
        """Accumulates the weight gradients that `backward` left for later; communicates nothing."""
        ...

    def expect_last_backward(self, index: int) -> None:
        """Announces that the next pass completes the iteration's gradients.

        That pass is `backward_weight` if passes are split, and `backward` if not.
        """
        ...

    def reduce_gradients(self) -> None:
        """All-reduce: sums over replicas the weight gradients that were not summed yet."""
        ...

    def step_optimizer(self) -> None:
        """Clips gradients by their norm over all stages, updates the weights, clears gradients."""
        ...

    def finish_iteration(self) -> StageReport:
        """Loss, gradient norm and peak memory since the last call; starts them anew."""
        ...
