"""AdamW optimizer of a stage, with clipping and ZeRO-1."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.early_sums import EarlySums
from dynapipe_hpc.training.flat_parameters import FlatParameters
from dynapipe_hpc.training.learning_rate import learning_rate
from dynapipe_hpc.training.loss_scale import LossScale
from dynapipe_hpc.training.optimizer_state import (
    FlatState,
    count_updates,
    flat_state,
    set_updates,
)
from dynapipe_hpc.training.tied_copies import NOTHING_TIED, Tied, TiedCopies, borrowed

_PIECE = 1 << 24  # numbers whose norm is computed at once


@dataclass(frozen=True, slots=True)
class Step:
    """Result of an optimizer step.

    Attributes:
        gradient_norm: Norm of the complete model's gradient, before clipping; infinite or NaN if a
            gradient overflowed and the update was skipped.
        learning_rate: Learning rate of the update; 0 if it was skipped.
    """

    gradient_norm: float
    learning_rate: float


class Optimizer:
    """AdamW on the weights of one stage, with clipping by the norm of the complete model.

    16-bit weights are rounded from float32 weights that it keeps. Its state may be divided among
    replicas (ZeRO-1): each of them then updates its share of the weights, and an all-gather
    distributes the results.

    Attributes:
        parameters: Weights and their gradients.
        loss_scale: Loss scale, by which gradients are multiplied.

    Source:
        Rajbhandari et al., "ZeRO", SC 2020: optimizer state partitioning.
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
        """Takes over the weights and gradients of `module`, whose parameters have one type.

        Args:
            module: Module with the layers of this rank.
            config: Training configuration.
            collectives: Collectives of the ranks that train the model.
            shares_state: Whether replicas divide the optimizer's state among them (ZeRO-1).
            tied: Weights of which several stages hold a copy.
        """
        self._n_shares, self._shares_state = collectives.n_replicas, shares_state
        not_own = borrowed(tied, collectives.stage)
        self.parameters = FlatParameters(module, self._n_shares, not_own)
        self._copies = TiedCopies(module, tied, self.parameters, collectives)
        self.loss_scale = LossScale(self.parameters.weights.dtype, config.max_skipped_updates)
        self._config = config
        self._collectives = collectives
        self._early = _early_sums(module, self.parameters, collectives, tied, shares_state)
        self._weights = self._own(self.parameters.weights)
        self._gradients = self._own(self.parameters.gradients)
        # The same memory, unless the weights have 16 bits.
        self._exact_weights = self._weights.to(self._gradients.dtype)
        self._adamw = torch.optim.AdamW(self._groups(), betas=config.betas, fused=True)
        self._norm = self._gradients.new_zeros((), dtype=torch.float64)
        self._n_steps = 0

    @property
    def kept_bytes(self) -> int:
        """Size of weights, gradients and, after the first step, state on this rank, in bytes."""
        kept = [self.parameters.weights, self.parameters.gradients, self._exact_weights]
        kept += [t for state in self._adamw.state.values() for t in state.values() if t.ndim]
        of_own = {t.untyped_storage().data_ptr(): t.nbytes for t in reversed(kept)}
        return sum(of_own.values()) + self._copies.kept_bytes

    def expect_last_backward(self) -> None:
        """Announces that the next backward pass completes gradients; sums may overlap with it."""
        if self._early:
            self._early.expect_last_backward()

    def reduce_gradients(self) -> None:
        """Sums gradients over copies of tied weights, then over replicas (all-reduce)."""
        self._copies.collect_gradients()
        if self._early:
            self._early.finish()
        elif self._shares_state:
            self._collectives.sum_share_over_replicas(self.parameters.gradients)
        else:
            self._collectives.sum_over_replicas(self.parameters.gradients)

    def step(self) -> None:
        """Clips gradients, updates the weights, clears gradients; `read_step` returns the result.

        The update is skipped if a gradient overflowed on any rank. The device decides that, and
        the host does not wait for it.
        """
        self._norm = self._square_sum().sqrt() / self.loss_scale.value
        self._update()
        self.parameters.gradients.zero_()
        self._copies.clear_gradients()
        self._n_steps += 1

    def read_step(self) -> Step:
        """Result of the last step, for which it waits; called once after each step.

        Raises:
            DivergedError: A gradient is not a finite number, no smaller loss scale can help, and
                no further update may be skipped.
        """
        norm, step = self._norm.item(), self._n_steps - 1
        if not math.isfinite(norm):
            self.loss_scale.shrink(norm, step)
            return Step(norm, 0.0)
        self.loss_scale.count_step()
        return Step(norm, learning_rate(step, self._config))

    def state(self) -> FlatState:
        """Weights, in the precision in which they are kept, and moments that this rank updates."""
        return flat_state(self._adamw, self._exact_weights, self._first)

    @property
    def counters(self) -> Counters:
        """Counters of the state, which are equal on all ranks."""
        n_updates = count_updates(self._adamw)
        scale = self.loss_scale
        return Counters(self._n_steps, n_updates, scale.value, scale.n_steps, scale.n_skipped)

    def resume(self, counters: Counters) -> None:
        """Resumes from `counters` and the contents of `state`; called by all ranks together."""
        self._n_steps = counters.n_steps
        self.loss_scale.value = counters.loss_scale
        self.loss_scale.n_steps = counters.n_scaled_steps
        self.loss_scale.n_skipped = counters.n_skipped_steps
        set_updates(self._adamw, counters.n_updates)
        self._spread_weights()

    def _update(self) -> None:
        limit = self._config.clip_norm or math.inf
        self._gradients.mul_((limit / self._norm).clamp(max=1) / self.loss_scale.value)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate(self._n_steps, self._config)
        # As in torch's own loss scaler, the kernel checks this flag and skips the update.
        self._adamw.found_inf = (~self._norm.isfinite()).float()  # type: ignore[attr-defined]
        self._adamw.step()
        self._spread_weights()

    def _spread_weights(self) -> None:
        """Distributes updated weights to all ranks that compute with them."""
        if self._weights is not self._exact_weights:
            self._weights.copy_(self._exact_weights)
        if self._shares_state:
            self._collectives.gather_shares(self.parameters.weights)
        self._copies.spread_weights()

    def _square_sum(self) -> Tensor:
        """Squared norm of the model's gradients (float64), summed per ZeRO share.

        The order of the sum is the same with and without ZeRO, so sharding changes no bit.
        """
        n = len(self.parameters.gradients) // self._n_shares
        own = [self._collectives.replica] if self._shares_state else range(self._n_shares)
        sums = torch.zeros(self._n_shares, dtype=torch.float64, device=self._gradients.device)
        for share in own:
            sums[share] = self._square_sum_of(slice(share * n, (share + 1) * n))
        if self._shares_state:
            self._collectives.sum_over_replicas(sums)
        total = sums.sum(dim=0, keepdim=True)
        self._collectives.sum_within_replica(total)
        return total[0]

    def _square_sum_of(self, extent: slice) -> Tensor:
        """Squared norm of some gradients; weights that all shards hold count on the first only."""
        gradients, unsplit = self.parameters.gradients, self.parameters.unsplit
        if self._collectives.shard == 0:
            return _square_sum(gradients[extent])
        before = gradients[extent.start : max(extent.start, min(extent.stop, unsplit.start))]
        after = gradients[min(extent.stop, max(extent.start, unsplit.stop)) : extent.stop]
        return _square_sum(before) + _square_sum(after)

    @property
    def _first(self) -> int:
        """Index in a flat buffer of the first number that this rank updates."""
        return self._collectives.replica * len(self._gradients) if self._shares_state else 0

    def _own(self, values: Tensor) -> Tensor:
        """Part of a flat buffer that this rank updates."""
        is_share = self._shares_state
        return values.chunk(self._n_shares)[self._collectives.replica] if is_share else values

    def _groups(self) -> list[dict[str, object]]:
        """Parameter groups of AdamW, with and without decay, as pieces of flat buffers."""
        n_decaying = min(max(self.parameters.n_decaying - self._first, 0), len(self._gradients))
        sizes = [n_decaying, len(self._gradients) - n_decaying]
        groups: list[dict[str, object]] = []
        for weights, gradients, decay in zip(
            torch.split(self._exact_weights, sizes),
            torch.split(self._gradients, sizes),
            (self._config.weight_decay, 0.0),
            strict=True,
        ):
            weights.grad = gradients
            groups.append({"params": [weights], "weight_decay": decay})
        return [group for group, size in zip(groups, sizes, strict=True) if size]


def _early_sums(
    module: nn.Module,
    own: FlatParameters,
    collectives: Collectives,
    tied: Tied,
    shares_state: bool,
) -> EarlySums | None:
    """Overlapped all-reduce if the collectives support it and gradients are not shared; or None.

    ZeRO shares do not end at layer boundaries. With tensor-parallel shards, backward passes sum
    activations, and NCCL may deadlock if operations of overlapping groups start in another order.
    """
    is_simple = not shares_state and collectives.n_shards == 1
    if collectives.n_replicas == 1 or not (is_simple and collectives.sums_beside_work):
        return None
    held = dict(module.named_parameters())
    return EarlySums(own, collectives, [held[name] for name in tied if name in held])


def state_factor(dtype: torch.dtype) -> float:
    """Bytes of weights, gradients and state per byte of weights, without ZeRO.

    They are gradients, two moments and weights, the latter also in float32 if they have 16 bits.
    """
    wide = torch.promote_types(dtype, torch.float32)
    extra = 0 if wide == dtype else dtype.itemsize
    return (4 * wide.itemsize + extra) / dtype.itemsize


def _square_sum(values: Tensor) -> Tensor:
    """Squared norm in float64, computed in pieces because torch copies its input to float64."""
    total = torch.zeros((), dtype=torch.float64, device=values.device)
    for start in range(0, len(values), _PIECE):
        norm = torch.linalg.vector_norm(values[start : start + _PIECE], dtype=torch.float64)
        total += norm.square()
    return total
