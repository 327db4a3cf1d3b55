"""Optimizer of a stage, with clipping and ZeRO-1."""

import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.sharding.adapters import has_adapters
from dynapipe_hpc.models.tied_weights import Tied
from dynapipe_hpc.training.adamw import AdamW
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.flat_parameters import FlatParameters, FlatState
from dynapipe_hpc.training.learning_rate import learning_rate
from dynapipe_hpc.training.loss_scale import LossScale
from dynapipe_hpc.training.overlapped_reduce import OverlappedGradientReduce
from dynapipe_hpc.training.step import PendingStep
from dynapipe_hpc.training.tied_copies import NOTHING_TIED, TiedCopies, borrowed
from dynapipe_hpc.training.zero_partition import ZeroPartition

_PIECE = 1 << 24  # numbers whose norm is computed at once


def square_sum(
    parameters: FlatParameters, share: ZeroPartition, collectives: Collectives
) -> Tensor:
    """Squared norm of the model's gradient, a float64 scalar; all ranks of a replica together."""
    total = share.sum_by_part(
        parameters.gradients, partial(_square_sum_of, parameters, collectives.shard)
    )
    collectives.sum_within_replica(total)
    return total[0]


def _square_sum_of(parameters: FlatParameters, shard: int, extent: slice) -> Tensor:
    """Squared norm of some gradients; weights that all shards hold count on the first only."""
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
    """AdamW on the weights of one stage, with clipping by the norm of the model.

    16-bit weights are rounded from float32 weights that it keeps. Its state may be divided among
    replicas (ZeRO-1): each of them then updates its share of the weights, and an all-gather
    distributes the results.

    Attributes:
        loss_scale: Loss scale, by which gradients are multiplied.
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
        self._weights = self._share.of(self.parameters.weights)
        self._gradients = self._share.of(self.parameters.gradients)
        # The same memory, unless the weights have 16 bits.
        self._exact_weights = self._weights.to(self._gradients.dtype)
        n_decaying = min(max(self.parameters.n_decaying - self._first, 0), len(self._gradients))
        self._adamw = AdamW(self._exact_weights, self._gradients, n_decaying, config)
        self._n_steps = 0

    @property
    def kept_bytes(self) -> int:
        """Size of weights, frozen or not, gradients and state on this rank, in bytes."""
        kept = [self.parameters.weights, self.parameters.gradients, *self._adamw.tensors]
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
        """Starts a step: clips gradients, updates the weights, clears gradients.

        The update is skipped if a gradient overflowed on any rank. The device decides that, and
        the host does not wait for it.
        """
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
        """Index in a flat buffer of the first number that this rank updates."""
        return self._share.first(self.parameters.gradients)


def _early_sums(
    module: nn.Module,
    own_parameters: FlatParameters,
    collectives: Collectives,
    tied: Tied,
    *,
    share: ZeroPartition,
) -> OverlappedGradientReduce | None:
    """Overlapped all-reduce if the collectives support it and gradients are not shared; or None.

    ZeRO shares do not end at layer boundaries. With tensor-parallel shards, backward passes sum
    activations, and NCCL may deadlock if operations of overlapping groups start in another order.
    """
    is_simple = not share.is_part and collectives.n_shards == 1
    if collectives.n_replicas == 1 or not (is_simple and collectives.sums_beside_work):
        return None
    held = dict(module.named_parameters())
    return OverlappedGradientReduce(
        own_parameters, collectives, [held[name] for name in tied if name in held]
    )
