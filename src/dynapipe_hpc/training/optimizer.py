"""Optimizer of a stage: AdamW on flat buffers, with clipping, loss scaling and ZeRO-1."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.models.sharding.sharded_linear import has_adapters
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.flat_parameters import FlatParameters, FlatState, Segment
from dynapipe_hpc.training.learning_rate import learning_rate
from dynapipe_hpc.training.overlapped_reduce import OverlappedGradientReduce
from dynapipe_hpc.training.tied_copies import NOTHING_TIED, Tied, TiedCopies, borrowed


class ZeroPartition:
    """Part of flat buffers that a replica updates: one of `n_parts` with ZeRO-1, else everything.

    Source: Rajbhandari et al., "ZeRO", SC 2020: optimizer state partitioning.
    """

    def __init__(self, collectives: Collectives, *, is_part: bool) -> None:
        self.is_part = is_part
        self.n_parts = collectives.n_replicas
        self._collectives = collectives

    def part_of(self, values: Tensor) -> Tensor:
        """View of this replica's part of a flat buffer."""
        return values.chunk(self.n_parts)[self._collectives.replica] if self.is_part else values

    def first(self, values: Tensor) -> int:
        """Index in a flat buffer of the first number of this replica's part."""
        n = len(values) // self.n_parts
        return self._collectives.replica * n if self.is_part else 0

    def sum_gradients(self, gradients: Tensor) -> None:
        """Sums the part's gradients over replicas: reduce-scatter, or all-reduce without ZeRO."""
        if self.is_part:
            self._collectives.sum_share_over_replicas(gradients)
        else:
            self._collectives.sum_over_replicas(gradients)

    def gather(self, weights: Tensor) -> None:
        """All-gather: replaces every part with its replica's values; nothing without ZeRO."""
        if self.is_part:
            self._collectives.gather_shares(weights)

    def sum_by_part(self, values: Tensor, number_of: Callable[[slice], Tensor]) -> Tensor:
        """Sum of a number (float64 scalar) over all parts of a flat buffer, on every replica.

        The order of the sum is the same with and without ZeRO, so dividing the state changes no
        bit.
        """
        n = len(values) // self.n_parts
        own_parts = [self._collectives.replica] if self.is_part else range(self.n_parts)
        numbers = torch.zeros(self.n_parts, dtype=torch.float64, device=values.device)
        for part in own_parts:
            numbers[part] = number_of(slice(part * n, (part + 1) * n))
        if self.is_part:
            self._collectives.sum_over_replicas(numbers)
        return numbers.sum(dim=0, keepdim=True)


FIRST_SCALE = 2.0**16
FACTOR = 2.0
STEPS_TO_GROW = 1000


class DivergedError(RunError):
    """Training has diverged: a gradient is not finite."""


class LossScale:
    """Loss scale: the factor of a loss before its backward pass, a power of two.

    With float16, whose gradients underflow, it is halved when a gradient overflows, and doubled
    after many steps without overflow; with other types it is one. All ranks see the same norms, so
    they hold the same scale. `n_skipped`: Consecutive skipped steps for which a smaller scale
    would not have helped.
    """

    def __init__(self, dtype: torch.dtype, may_skip: int = 0) -> None:
        self._is_dynamic = dtype is torch.float16
        self.value = FIRST_SCALE if self._is_dynamic else 1.0
        self._may_skip = may_skip
        self.n_steps = 0
        self.n_skipped = 0

    def shrink(self, norm: float, step: int) -> None:
        """Reacts to a gradient that is not finite: skips the step, or raises `DivergedError`."""
        if self.value > 1:
            self.value /= FACTOR
            self.n_steps = 0
        elif self.n_skipped < self._may_skip:
            self.n_skipped += 1
        else:
            after = f", after {self.n_skipped} skipped updates" if self.n_skipped else ""
            raise DivergedError(
                f"the gradient's norm is {norm} in step {step}{after}: training diverged; "
                "lower training.learning_rate or raise training.warmup_iterations; if single "
                "batches are the cause, set training.max_skipped_updates to "
                f"more than {self._may_skip}"
            )

    def count_step(self) -> None:
        """Counts a successful step; after many of them the scale may grow."""
        self.n_steps += 1
        self.n_skipped = 0
        if self._is_dynamic and self.n_steps == STEPS_TO_GROW:
            self.value *= FACTOR
            self.n_steps = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Result of an optimizer step; the norm is infinite or NaN if it was skipped."""

    gradient_norm: float  # of the complete model, before clipping
    learning_rate: float  # learning rate of the update; 0 if it was skipped


@dataclass(frozen=True, slots=True, eq=False)
class PendingStep:
    """Handle of an optimizer step that was started."""

    number: int
    norm: Tensor  # norm of the complete model's gradient, before clipping; a scalar on the device
    learning_rate: float  # learning rate, unless the update is skipped
    loss_scale: LossScale

    def read(self) -> Step:
        """Waits for the result; once, before the next backward pass; may raise `DivergedError`."""
        norm = self.norm.item()
        if not math.isfinite(norm):
            self.loss_scale.shrink(norm, self.number)
            return Step(norm, 0.0)
        self.loss_scale.count_step()
        return Step(norm, self.learning_rate)


STATE_KINDS = ("weight", "first_moment", "second_moment")
EPSILON = 1e-8


class AdamW:
    """AdamW on consecutive weights, matrices first.

    The class in `torch.optim` calls the same kernel, but imports torch's compiler, which takes
    seconds of processor time at the start of every rank.
    """

    def __init__(
        self, weights: Tensor, gradients: Tensor, n_matrices: int, config: TrainingConfig
    ) -> None:
        """Takes over `weights` and reads `gradients`, both of shape (n,) and at least 32 bits."""
        self._config = config
        self._weights, self._gradients = weights, gradients
        self._sizes = [n_matrices, len(weights) - n_matrices]
        # The kernel counts the updates of each group separately.
        self._n_updates = torch.zeros(2, dtype=torch.float32, device=weights.device)

    @property
    def n_updates(self) -> int:
        """Number of updates so far, without skipped ones; the host waits for the device."""
        return int(self._n_updates[0].item())

    @n_updates.setter
    def n_updates(self, value: int) -> None:
        self._n_updates.fill_(value)

    @cached_property
    def _state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and moments; moments exist from their first use, as profiles never use them."""
        return self._weights, torch.zeros_like(self._weights), torch.zeros_like(self._weights)

    @cached_property
    def _groups(self) -> list[tuple[Tensor, ...]]:
        pieces = (torch.split(each, self._sizes) for each in (self._gradients, *self._state))
        return list(zip(*pieces, self._n_updates, strict=True))

    def state(self, first: int) -> FlatState:
        """Weights and moments; `first` is the index of their first number in the flat buffer."""
        kinds = zip(STATE_KINDS, self._state, strict=True)
        return {kind: Segment(first, values) for kind, values in kinds}

    def update(self, learning_rate: float, skips: Tensor) -> None:
        """Updates weights and moments, unless `skips` is 1.0 (a scalar on the device, else 0.0)."""
        first_decay, second_decay = self._config.betas
        decay = self._config.weight_decay
        decays = (decay, decay if self._config.decay == "all" else 0.0)
        for (gradients, weights, first, second, n), decay in zip(self._groups, decays, strict=True):
            adamw(
                [weights],
                [gradients],
                [first],
                [second],
                [],
                [n],
                fused=True,
                found_inf=skips,
                amsgrad=False,
                beta1=first_decay,
                beta2=second_decay,
                lr=learning_rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )


_PIECE = 1 << 24  # most numbers whose norm is computed at once


def square_sum(
    parameters: FlatParameters, share: ZeroPartition, collectives: Collectives
) -> Tensor:
    """Squared norm of the model's gradient, float64 scalar; called by all ranks of a replica."""
    total = share.sum_by_part(
        parameters.gradients, partial(_square_sum_of, parameters, collectives.shard)
    )
    collectives.sum_within_replica(total)
    return total[0]


def _square_sum_of(parameters: FlatParameters, shard: int, extent: slice) -> Tensor:
    """Squared norm of some gradients; weights on all shards count only on the first shard."""
    gradients, unsplit = parameters.gradients, parameters.unsplit
    if shard == 0:
        return _square_sum(gradients[extent])
    before = gradients[extent.start : max(extent.start, min(extent.stop, unsplit.start))]
    after = gradients[min(extent.stop, max(extent.start, unsplit.stop)) : extent.stop]
    return _square_sum(before) + _square_sum(after)


def _square_sum(values: Tensor) -> Tensor:
    """Squared norm in float64, computed in pieces because torch copies its input to float64."""
    total = torch.zeros((), dtype=torch.float64, device=values.device)
    for start in range(0, len(values), _PIECE):
        norm = torch.linalg.vector_norm(values[start : start + _PIECE], dtype=torch.float64)
        total += norm.square()
    return total


class Optimizer:
    """AdamW on the weights of one stage, with clipping by the norm of the model's gradient.

    16-bit weights are rounded from float32 weights that the optimizer keeps. With ZeRO-1 each
    replica updates its share of the weights, and an all-gather distributes the results.
    """

    def __init__(
        self,
        module: nn.Module,
        config: TrainingConfig,
        collectives: Collectives,
        *,
        shares_state: bool = False,
        tied: Tied = NOTHING_TIED,
    ) -> None:
        """Takes over the trained weights of `module`, whose parameters have one type."""
        self._share = ZeroPartition(collectives, is_part=shares_state)
        not_own = borrowed(tied, collectives.stage)
        self.parameters = FlatParameters(module, self._share.n_parts, not_own)
        self._copies = TiedCopies(module, tied, self.parameters, collectives)
        self.loss_scale = LossScale(self.parameters.weights.dtype, config.max_skipped_updates)
        self._config = config
        self._collectives = collectives
        # Shards have seen different tokens, or computed with different parts of a map.
        self._sums_over_shards = collectives.sequence_parallel or has_adapters(module)
        self._frozen_bytes = sum(p.nbytes for p in module.parameters() if not p.requires_grad)
        self._early = _early_sums(module, self.parameters, collectives, tied, share=self._share)
        self._weights = self._share.part_of(self.parameters.weights)
        self._gradients = self._share.part_of(self.parameters.gradients)
        # The same memory as the weights, unless these have 16 bits.
        self._exact_weights = self._weights.to(self._gradients.dtype)
        n_decaying = min(max(self.parameters.n_decaying - self._first, 0), len(self._gradients))
        self._adamw = AdamW(self._exact_weights, self._gradients, n_decaying, config)
        self._n_steps = 0

    @property
    def kept_bytes(self) -> int:
        """Size of weights, frozen or not, gradients and state on this rank, in bytes."""
        state = [each.values for each in self.state().values()]
        kept = [self.parameters.weights, self.parameters.gradients, *state]
        of_own = {t.untyped_storage().data_ptr(): t.nbytes for t in reversed(kept)}
        return sum(of_own.values()) + self._copies.kept_bytes + self._frozen_bytes

    def expect_last_backward(self, adds_to: Iterable[Tensor]) -> None:
        """Announces that the next backward pass completes gradients; sums may overlap with it."""
        if self._early:
            self._early.expect_last_backward(adds_to)

    def reduce_gradients(self) -> None:
        """Sums gradients over copies of tied weights, then over replicas (all-reduce)."""
        self._copies.collect_gradients()
        if self._sums_over_shards:
            unsplit = self.parameters.gradients[self.parameters.unsplit]
            unsplit.copy_(self._collectives.sum_over_shards(unsplit))
        if self._early:
            self._early.finish()
        else:
            self._share.sum_gradients(self.parameters.gradients)

    def step(self) -> PendingStep:
        """Starts a step: clips, updates unless a gradient overflowed, clears gradients."""
        norm = square_sum(self.parameters, self._share, self._collectives).sqrt()
        norm /= self.loss_scale.value
        rate = learning_rate(self._n_steps, self._config)
        self._update(norm, rate)
        self.clear_gradients()
        started = PendingStep(self._n_steps, norm, rate, self.loss_scale)
        self._n_steps += 1
        return started

    def clear_gradients(self) -> None:
        """Sets all gradients of this rank to zero."""
        self.parameters.gradients.zero_()
        self._copies.clear_gradients()

    def state(self) -> FlatState:
        """Weights, in the precision in which they are kept, and moments that this rank updates."""
        return self._adamw.state(self._first)

    @property
    def counters(self) -> Counters:
        """Counters of the state, which are equal on all ranks."""
        scale, n_updates = self.loss_scale, self._adamw.n_updates
        return Counters(self._n_steps, n_updates, scale.value, scale.n_steps, scale.n_skipped)

    def resume(self, counters: Counters) -> None:
        """Resumes from `counters` and the contents of `state`; called by all ranks together."""
        self._n_steps = counters.n_steps
        self.loss_scale.value = counters.loss_scale
        self.loss_scale.n_steps = counters.n_scaled_steps
        self.loss_scale.n_skipped = counters.n_skipped_steps
        self._adamw.n_updates = counters.n_updates
        self._spread_weights()

    def _update(self, norm: Tensor, rate: float) -> None:
        limit = self._config.clip_norm or math.inf
        self._gradients.mul_((limit / norm).clamp(max=1) / self.loss_scale.value)
        self._adamw.update(rate, (~norm.isfinite()).float())
        self._spread_weights()

    def _spread_weights(self) -> None:
        """Distributes updated weights to all ranks that compute with them."""
        if self._weights is not self._exact_weights:
            self._weights.copy_(self._exact_weights)
        self._share.gather(self.parameters.weights)
        self._copies.spread_weights()

    @property
    def _first(self) -> int:
        return self._share.first(self.parameters.gradients)


def _early_sums(
    module: nn.Module,
    own_parameters: FlatParameters,
    collectives: Collectives,
    tied: Tied,
    *,
    share: ZeroPartition,
) -> OverlappedGradientReduce | None:
    """Overlapped all-reduce; None if not supported, with ZeRO, and with tensor-parallel shards.

    ZeRO shares do not end at layers. Shards sum activations in backward passes: NCCL may deadlock
    if ranks start sums of overlapping groups in different orders.
    """
    is_simple = not share.is_part and collectives.n_shards == 1
    if collectives.n_replicas == 1 or not (is_simple and collectives.sums_beside_work):
        return None
    held = dict(module.named_parameters())
    return OverlappedGradientReduce(
        own_parameters, collectives, [held[name] for name in tied if name in held]
    )
