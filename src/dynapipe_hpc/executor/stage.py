"""What the executor needs from a pipeline stage."""

from typing import Protocol, TypeVar

from dynapipe_hpc.data.microbatch import MicroBatch

Tensor = TypeVar("Tensor")


class Stage(Protocol[Tensor]):
    """The layers of one rank.

    Contract: the stages of a pipeline, run on the micro-batches of a batch in any valid
    order, give the loss and gradients of the unsplit model.
    """

    def load(self, index: int, microbatch: MicroBatch) -> None:
        """Reads the tokens of a micro-batch if this stage needs them."""
        ...

    def forward(self, index: int, activation: Tensor | None) -> Tensor | None:
        """Runs the layers and keeps what backward needs.

        Args:
            index: The micro-batch.
            activation: From the stage before, shape (rows, tokens, width); None on the first.

        Returns:
            The activation for the next stage; None on the last, which adds up its loss.
        """
        ...

    def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Adds this micro-batch's weight gradients and frees what forward kept.

        Args:
            index: The micro-batch.
            gradient: Of the activation that `forward` returned; None on the last stage.

        Returns:
            The gradient of the activation received; None on the first stage.
        """
        ...

    def expect_last_backward(self) -> None:
        """The next backward pass is the last of the iteration: its gradients are whole."""
        ...

    def reduce_gradients(self) -> None:
        """Adds up weight gradients over replicas, those that were not yet."""
        ...

    def step_optimizer(self) -> None:
        """Clips by the norm over all stages, updates the weights, clears the gradients."""
        ...

    def finish_iteration(self) -> "StageReport":
        """Loss, norm and peak memory since the last call, which starts the next account."""
        ...


class StageReport(Protocol):
    """What a stage says about an iteration; the fields of `IterationTrace`."""

    @property
    def loss(self) -> float: ...
    @property
    def gradient_norm(self) -> float: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def peak_is_whole(self) -> bool: ...
