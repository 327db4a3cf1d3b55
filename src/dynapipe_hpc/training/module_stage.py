"""A torch module as a pipeline stage."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.training.activation_memory import ActivationMemory, MemoryAccount
from dynapipe_hpc.training.allocated_memory import AllocatedMemory
from dynapipe_hpc.training.optimizer import Optimizer, Step


class Batch(Protocol):
    """The tokens of a micro-batch, as a family of models reads them."""

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        ...


BatchT = TypeVar("BatchT", bound=Batch)
BatchT_contra = TypeVar("BatchT_contra", contravariant=True)


class StageModule(Protocol[BatchT_contra]):
    """The layers of a stage of some family of models."""

    @property
    def is_last(self) -> bool:
        """Whether the stage ends with the loss."""
        ...

    @property
    def loads(self) -> bool:
        """Whether `run` needs a batch."""
        ...

    def run(
        self, activation: Tensor | None, batch: BatchT_contra | None, recompute: Recompute
    ) -> Tensor:
        """From the activation of the stage before, None on the first, to the next or the loss."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights."""
        ...


NO_STEP = Step(gradient_norm=0.0, learning_rate=0.0)


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """What a stage says about an iteration; see `IterationTrace`."""

    loss: float
    gradient_norm: float
    learning_rate: float
    peak_bytes: int
    peak_is_whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The two ends of a micro-batch's graph, from its forward to its backward pass."""

    activation: Tensor | None
    output: Tensor


class ModuleStage(Generic[BatchT]):
    """Runs the layers of one rank; an executor's `Stage` of torch tensors."""

    def __init__(
        self,
        module: StageModule[BatchT],
        load_tokens: Callable[[MicroBatch], BatchT],
        optimizer: Optimizer,
    ) -> None:
        """Runs `module`, which `optimizer` updates, on what `load_tokens` reads."""
        self._module = module
        self._load_tokens = load_tokens
        self._optimizer = optimizer
        device = optimizer.parameters.weights.device
        on_host = device.type == "cpu"
        self._memory: MemoryAccount = (
            ActivationMemory(module.parameters()) if on_host else AllocatedMemory(device)
        )
        self._recompute: dict[int, Recompute] = {}
        self._loaded: dict[int, BatchT] = {}
        self._kept: dict[int, _Kept] = {}
        self._loss = optimizer.parameters.weights.new_zeros((), dtype=torch.float64)
        self._has_stepped = False

    def load(self, index: int, microbatch: MicroBatch) -> None:
        """Notes what to recompute, and reads the tokens that the module needs."""
        self._recompute[index] = microbatch.recompute
        if self._module.loads:
            self._loaded[index] = self._load_tokens(microbatch).to(self._loss.device)

    def forward(self, index: int, activation: Tensor | None) -> Tensor | None:
        """Runs the layers; keeps their graph, and on the last stage adds up the loss."""
        batch, recompute = self._loaded.pop(index, None), self._recompute.pop(index)
        if activation is not None:
            activation = activation.detach().requires_grad_()
            self._memory.keep(index, activation)
        with self._memory.recording(index):
            output = self._module.run(activation, batch, recompute)
        self._kept[index] = _Kept(activation, output)
        self._memory.keep(index, output)
        if not self._module.is_last:
            return output.detach()
        self._loss += output.detach()
        return None

    def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Adds weight gradients and drops the graph; returns the gradient of the inputs."""
        kept = self._kept.pop(index)
        if gradient is None:  # the loss
            gradient = torch.full_like(kept.output, self._optimizer.loss_scale.value)
        torch.autograd.backward(kept.output, gradient)
        self._memory.release(index)
        if kept.activation is None or kept.activation.grad is None:
            return None
        return kept.activation.grad.contiguous()

    def expect_last_backward(self) -> None:
        """Lets gradients be added up over replicas while the next backward pass runs."""
        self._optimizer.expect_last_backward()

    def reduce_gradients(self) -> None:
        """Adds up weight gradients over replicas, those that were not yet."""
        self._optimizer.reduce_gradients()

    def step_optimizer(self) -> None:
        """Clips by the norm over all stages, updates the weights, clears the gradients."""
        self._optimizer.step()
        self._has_stepped = True

    def finish_iteration(self) -> ModuleReport:
        """Closes the account of an iteration and opens the next; here the host waits.

        Raises:
            DivergedError: A gradient is not a finite number, and no smaller loss scale can help.
        """
        step = self._optimizer.read_step() if self._has_stepped else NO_STEP
        report = ModuleReport(
            loss=self._loss.item(),
            gradient_norm=step.gradient_norm,
            learning_rate=step.learning_rate,
            peak_bytes=self._memory.peak_bytes,
            peak_is_whole=self._memory.is_whole,
        )
        self._loss.zero_()
        self._has_stepped = False
        self._memory.restart()
        return report
