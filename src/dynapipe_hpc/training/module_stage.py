"""Pipeline stage made of a torch module."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.deferred_weights import DeferredWeights, deferring, run_backward
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.packed_attention import KeyValueCache
from dynapipe_hpc.training.allocated_memory import AllocatedMemory
from dynapipe_hpc.training.counters import StageReport
from dynapipe_hpc.training.objective import (
    AnswerLogProbs,
    Objective,
    PreferenceLoss,
    SampleLosses,
    weighted_tokens,
)
from dynapipe_hpc.training.optimizer import Optimizer, PendingStep, Step


class ActivationMemory:
    """Account of a rank's activations: tensors saved by autograd, and boundary tensors.

    A storage counts once, however many tensors share it; weights do not count, nor does memory that
    a pass needs only while it runs (`has_transient`). `peak_bytes` is the peak since the
    last `restart`.
    """

    has_transient = False

    def __init__(self, weights: Iterable[Tensor]) -> None:
        """Opens the account; the storages of `weights` must not change from now on."""
        self._weights = {weight.untyped_storage().data_ptr() for weight in weights}
        self._kept: dict[int, dict[int, int]] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def keep(self, microbatch: int, tensor: Tensor) -> None:
        """Adds a boundary tensor to an account; if part of a buffer, before autograd saves it."""
        self._charge(microbatch, tensor, tensor.nbytes)

    @contextmanager
    def recording(self, microbatch: int) -> Iterator[None]:
        """Adds what autograd saves inside the block to a micro-batch's account."""

        def pack(tensor: Tensor) -> Tensor:
            self._charge(microbatch, tensor, tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def release(self, microbatch: int) -> None:
        """Takes a micro-batch off the account."""
        self.live_bytes -= sum(self._kept.pop(microbatch, {}).values())

    def restart(self) -> None:
        """Starts a new peak at the current memory."""
        self.peak_bytes = self.live_bytes

    def _charge(self, microbatch: int, tensor: Tensor, n_bytes: int) -> None:
        kept = self._kept.setdefault(microbatch, {})
        address = tensor.untyped_storage().data_ptr()
        if address in kept or address in self._weights:
            return
        kept[address] = n_bytes
        self.live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


NO_STEP = Step(gradient_norm=0.0, learning_rate=0.0)


class ModuleStage:
    """The executor's `Stage` of torch tensors: runs the layers of one rank."""

    def __init__(
        self,
        module: StageOfFamily,
        load_tokens: Callable[[MicroBatch], Batch],
        optimizer: Optimizer,
    ) -> None:
        self._module = module
        self._load_tokens = load_tokens
        self._optimizer = optimizer
        device = optimizer.parameters.weights.device
        on_host = device.type == "cpu"
        self._memory = ActivationMemory(module.parameters()) if on_host else AllocatedMemory(device)
        self._recompute: dict[int, Recompute] = {}
        self._loaded: dict[int, Batch] = {}
        self._graphs: dict[int, tuple[Tensor | None, Tensor]] = {}  # input and output of each
        self._deferred: dict[int, DeferredWeights] = {}
        self._sliced = SlicedSamples()
        self._loss = optimizer.parameters.weights.new_zeros((), dtype=torch.float64)
        self._step: PendingStep | None = None
        self._objective: Objective = weighted_tokens
        self._preferences: PreferenceLoss | None = None
        self._evaluated: Tensor | None = None

    def train_preferences(self, objective: PreferenceLoss) -> None:
        """Lets the stage train on preference pairs from now on."""
        self._objective, self._preferences = objective.loss, objective

    @contextmanager
    def evaluating(
        self, load_tokens: Callable[[MicroBatch], Batch], samples: Sequence[Sample]
    ) -> Iterator[Tensor]:
        """Lets the stage execute only forward passes in the block: they keep nothing.

        Returns the table of `SampleLosses`, or of `AnswerLogProbs` for pairs; zeros except on the
        last stage.
        """
        outer = self._load_tokens, self._objective
        of_pairs = any(sample.is_pair for sample in samples)
        table_of = AnswerLogProbs if of_pairs else SampleLosses
        sample_losses = table_of(samples, self._loss.device)
        self._load_tokens, self._objective = load_tokens, sample_losses.loss
        self._evaluated = sample_losses.zeros()
        try:
            with torch.no_grad():
                yield self._evaluated
        finally:
            self._load_tokens, self._objective = outer
            self._evaluated = None

    def load(self, index: int, microbatch: MicroBatch) -> None:
        """Records the recompute mode, and reads what the module needs of the micro-batch."""
        self._recompute[index] = microbatch.recompute
        batch = self._load_tokens(microbatch).to(self._loss.device)
        kv_cache = self._sliced.load(index, microbatch)
        self._loaded[index] = replace(batch, kv_cache=kv_cache)

    def forward(
        self, index: int, activation: Tensor | None, *, split_backward: bool = False
    ) -> Tensor | None:
        """Runs the layers and keeps their graph; the last stage adds up the loss."""
        batch, recompute = self._loaded.pop(index), self._recompute.pop(index)
        if self._evaluated is not None:
            output = self._run(activation, batch, Recompute.NONE)
            self._sliced.forget_if_read(index)
            if not self._module.is_last:
                return output
            self._evaluated += output
            return None
        if activation is not None:
            activation = activation.detach().requires_grad_()
            self._memory.keep(index, activation)
        deferred = DeferredWeights() if split_backward else None
        with self._memory.recording(index), deferring(deferred):
            output = self._run(activation, batch, recompute)
        if deferred is not None:
            self._deferred[index] = deferred
        self._graphs[index] = activation, output
        self._memory.keep(index, output)
        self._keep_caches()
        if not self._module.is_last:
            return output.detach()
        self._loss += output.detach()
        return None

    def _run(self, activation: Tensor | None, batch: Batch, recompute: Recompute) -> Tensor:
        """The activation for the next stage; on the last stage, the loss by the objective."""
        output = self._module.run(activation, batch, recompute)
        if not self._module.is_last:
            return output
        if batch.labels is None:
            raise ValueError("the last stage needs the tokens that it predicts")
        return self._objective(output, batch.labels)

    def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Accumulates weight gradients and frees the graph; returns the gradient of the input.

        In a split pass, weight gradients of linear maps wait: inputs and gradients of outputs are
        kept.
        """
        activation, output = self._graphs.pop(index)
        if gradient is None:  # the loss
            gradient = torch.full_like(output, self._optimizer.loss_scale.value)
        if output.requires_grad:  # False if everything so far is frozen
            run_backward(output, gradient)
        self._memory.release(index)
        self._sliced.forget_if_done(index)
        self._keep_caches()
        if index in self._deferred:
            for tensor in self._deferred[index].kept:
                self._memory.keep(index, tensor)
        if activation is None or activation.grad is None:
            return None
        return activation.grad.contiguous()

    def _keep_caches(self) -> None:
        for first, tensor in self._sliced.tensors:
            self._memory.keep(first, tensor)

    def backward_weight(self, index: int) -> None:
        self._deferred.pop(index).accumulate()
        self._memory.release(index)

    def expect_last_backward(self, index: int) -> None:
        """Lets the all-reduce over replicas overlap with the next backward pass."""
        deferred = self._deferred.get(index)
        adds_to = self._module.parameters() if deferred is None else deferred.weights
        self._optimizer.expect_last_backward(adds_to)

    def reduce_gradients(self) -> None:
        self._optimizer.reduce_gradients()

    def step_optimizer(self) -> None:
        self._step = self._optimizer.step()

    def run_alone(
        self, microbatch: MicroBatch, shape: tuple[int, ...] | None, *, split_backward: bool
    ) -> int:
        """Runs a micro-batch forward and backward between iterations; weights stay as they are.

        `shape`: Shape of the activation that the stage before would send, zeros here; None on the
        first stage. Returns the peak of its memory in bytes. Raises `MemoryError`: The device has
        too little.
        """
        weights = self._optimizer.parameters.weights
        try:
            self.load(0, microbatch)
            activation = None if shape is None else weights.new_zeros(shape)
            output = self.forward(0, activation, split_backward=split_backward)
            self.backward(0, None if output is None else torch.zeros_like(output))
            if split_backward:
                self.backward_weight(0)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from error
        self._optimizer.clear_gradients()
        return self.finish_iteration().peak_bytes

    def finish_iteration(self) -> StageReport:
        """Reports an iteration and starts the next account; waits; may raise `DivergedError`."""
        step = self._step.read() if self._step else NO_STEP
        report = StageReport(
            loss=self._loss.item(),
            gradient_norm=step.gradient_norm,
            learning_rate=step.learning_rate,
            peak_bytes=self._memory.peak_bytes,
            peak_has_transient=self._memory.has_transient,
            preferences=self._preferences.take_numbers() if self._preferences else (),
        )
        self._loss.zero_()
        self._step = None
        self._memory.restart()
        return report


class SlicedSamples:
    """Keys and values of sliced samples, until the backward pass of the first slice."""

    def __init__(self) -> None:
        self._slices: dict[int, tuple[int, Slice]] = {}
        self._caches: dict[int, KeyValueCache] = {}
        self._first: dict[int, int] = {}

    def load(self, index: int, microbatch: MicroBatch) -> KeyValueCache | None:
        """The keys and values of the sample of a micro-batch's slice; None if it has no slice."""
        part = microbatch.slice
        if part is None:
            return None
        sample_id = microbatch.sample_ids[0]
        self._slices[index] = sample_id, part
        if part.begin == 0:
            self._first[sample_id] = index
        return self._caches.setdefault(sample_id, KeyValueCache(part.n_tokens))

    @property
    def tensors(self) -> Iterator[tuple[int, Tensor]]:
        """All tensors, each with the micro-batch of the sample's first slice."""
        for sample_id, kv_cache in self._caches.items():
            for tensor in kv_cache.tensors:
                yield self._first[sample_id], tensor

    def forget_if_done(self, index: int) -> None:
        """Forgets a slice's sample after the first slice's backward pass."""
        sample_id, part = self._slices.pop(index, (0, None))
        if part and part.begin == 0:
            self._forget(sample_id)

    def forget_if_read(self, index: int) -> None:
        """Frees a forward-only sample after its last slice."""
        sample_id, part = self._slices.pop(index, (0, None))
        if part and part.end == part.n_tokens:
            self._forget(sample_id)

    def _forget(self, sample_id: int) -> None:
        del self._caches[sample_id], self._first[sample_id]
