"""A torch module as a pipeline stage."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.models.collate import TokenBatch
from dynapipe_hpc.models.gpt import GptStage
from dynapipe_hpc.training.activation_memory import ActivationMemory
from dynapipe_hpc.training.optimizer import Optimizer, Step


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """What a stage says about an iteration; see `IterationTrace`."""

    loss: float
    gradient_norm: float
    learning_rate: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The two ends of a micro-batch's graph, from its forward to its backward pass."""

    inputs: Tensor
    output: Tensor


class ModuleStage:
    """Runs the layers of one rank; an executor's `Stage` of torch tensors."""

    def __init__(
        self,
        module: GptStage,
        load_tokens: Callable[[MicroBatch], TokenBatch],
        optimizer: Optimizer,
    ) -> None:
        """Runs `module`, which `optimizer` updates, on what `load_tokens` reads."""
        self._module = module
        self._load_tokens = load_tokens
        self._optimizer = optimizer
        self._memory = ActivationMemory(module.parameters())
        self._recompute: dict[int, Recompute] = {}
        self._loaded: dict[int, TokenBatch] = {}
        self._kept: dict[int, _Kept] = {}
        self._loss = optimizer.parameters.weights.new_zeros((), dtype=torch.float64)
        self._step = Step(gradient_norm=0.0, learning_rate=0.0)

    def load(self, index: int, microbatch: MicroBatch) -> None:
        """Notes what to recompute; on the first and the last stage reads the tokens."""
        self._recompute[index] = microbatch.recompute
        if self._module.is_first or self._module.is_last:
            self._loaded[index] = self._load_tokens(microbatch).to(self._loss.device)

    def forward(self, index: int, activation: Tensor | None) -> Tensor | None:
        """Runs the layers; keeps their graph, and on the last stage adds up the loss."""
        batch, recompute = self._loaded.pop(index, None), self._recompute.pop(index)
        inputs = _inputs(activation, batch)
        self._memory.keep(index, inputs)
        with self._memory.recording(index):
            output: Tensor = self._module(inputs, *_answers(batch), recompute)
        self._kept[index] = _Kept(inputs, output)
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
        return None if kept.inputs.grad is None else kept.inputs.grad.contiguous()

    def reduce_gradients(self) -> None:
        """Adds up weight gradients over replicas."""
        self._optimizer.reduce_gradients()

    def step_optimizer(self) -> None:
        """Clips by the norm over all stages, updates the weights, clears the gradients."""
        self._step = self._optimizer.step()

    def finish_iteration(self) -> ModuleReport:
        """Closes the account of an iteration and opens the next."""
        report = ModuleReport(
            loss=self._loss.item(),
            gradient_norm=self._step.gradient_norm,
            learning_rate=self._step.learning_rate,
            peak_bytes=self._memory.peak_bytes,
        )
        self._loss.zero_()
        self._memory.restart()
        return report


def _inputs(activation: Tensor | None, batch: TokenBatch | None) -> Tensor:
    if activation is not None:
        return activation.detach().requires_grad_()
    if batch is None:
        raise ValueError("neither an activation was received nor tokens loaded")
    return batch.tokens


def _answers(batch: TokenBatch | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    return (None, None) if batch is None else (batch.labels, batch.weights)
