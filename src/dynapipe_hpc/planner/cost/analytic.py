"""Costs estimated from the model's arithmetic, for machines that were not profiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import (
    BACKWARD_WORK,
    EMBEDDING,
    MAX_MASK_BYTES,
    NOTHING,
    Amount,
    Part,
    Side,
    Work,
    total,
)
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.cost.model_state import (
    factor_of_copies,
    held_weights,
    state_factor,
    state_factor_of_rank,
)
from dynapipe_hpc.planner.cost.slice_memory import slice_memory
from dynapipe_hpc.planner.cost.stage_parts import StageKinds, boundary_sizes, parts_of_stages
from dynapipe_hpc.planner.cost.tokens import Tokens


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """Needs of one part of a kind, on one shard.

    Attributes:
        side: Tokens that pass through it.
        window: Number of tokens that attention with a window sees, see `Part.window`.
        work: Operations of its forward pass.
        deferred_flops: Operations of what W computes gradients for, see `Part.deferred_work`.
        read_weight_bytes: Weights that every pass reads.
        deferred_weight_bytes: Gradients of weights that W computes.
        moved_bytes: Activations that the forward pass writes and reads.
        summed_bytes: Tensors that each direction adds up over shards.
        stored_bytes: Activations kept for the backward pass.
        transient_bytes: Activations on top while the forward pass runs.
        passing_bytes: Activations on top that it makes and does not keep, of one block at a time.
        mask_bytes: Masks of dropout on top while a pass runs, up to `MAX_MASK_BYTES`.
        gradient_bytes: Gradient of the largest weight, before it is added to those of others.
        term_bytes: Gradient that each layer computes for what its side shares.
        repeated_flops: Operations of the forward pass that the backward pass computes again.
        repeated_bytes: What it keeps of that until it needs it.
    """

    side: Side
    window: float
    work: Work
    deferred_flops: Amount
    read_weight_bytes: int
    deferred_weight_bytes: int
    moved_bytes: Amount
    summed_bytes: Amount
    stored_bytes: Amount
    transient_bytes: Amount
    transient_most_bytes: float
    passing_bytes: Sequence[Amount]
    mask_bytes: Amount
    gradient_bytes: int
    term_bytes: Amount
    sum_bytes: Amount
    repeated_flops: Amount
    repeated_bytes: Amount


def layer_estimates(
    parts: Mapping[str, Part],
    hidden_size: int,
    element_bytes: int,
    *,
    n_shards: int = 1,
    recompute: Recompute = Recompute.NONE,
) -> dict[str, LayerEstimate]:
    """Estimates by kind of part.

    Args:
        parts: Parts of a model on one shard, by kind.
        hidden_size: Width of the residual stream.
        element_bytes: Size of one number of an activation or weight.
        n_shards: Ranks over which heads, inner widths and the vocabulary are cut.
        recompute: What backward passes compute again.
    """
    token_bytes = element_bytes * hidden_size
    estimates = {}
    for kind, part in parts.items():
        transient = part.transient_bytes(element_bytes)
        n_read = 0 if kind == EMBEDDING else part.parameters  # few rows are looked up
        deferred = part.deferred_work(recompute)
        n_deferred = (deferred.per_own + deferred.per_source) // 2  # a product and a sum for each
        estimates[kind] = LayerEstimate(
            side=part.side,
            window=part.window,
            work=part.work,
            deferred_flops=deferred,
            read_weight_bytes=n_read * element_bytes,
            deferred_weight_bytes=n_deferred * element_bytes,
            moved_bytes=total(part.kept_bytes(Recompute.NONE, element_bytes), transient),
            summed_bytes=Amount(part.n_sums * token_bytes) if n_shards > 1 else NOTHING,
            stored_bytes=part.kept_bytes(recompute, element_bytes),
            transient_bytes=transient,
            transient_most_bytes=part.transient_most_bytes(element_bytes),
            passing_bytes=part.passing_bytes(recompute, element_bytes),
            mask_bytes=part.mask_bytes,
            gradient_bytes=part.largest_weight * element_bytes,
            term_bytes=part.gradient_term.times(element_bytes),
            sum_bytes=part.gradient_sum.times(element_bytes),
            repeated_flops=part.recomputed_work(recompute),
            repeated_bytes=part.recomputed_bytes(recompute, element_bytes),
        )
    return estimates


BEGINNING_SHARE = 0.25
"""Part of the time of launching a layer by which its kernels take longer than at their rates, as
seen on an H100 and an H200."""


def analytic_cost(
    shape: ModelShape,
    placement: Placement,
    cluster: Cluster,
    config: AnalyticConfig,
    *,
    parts: Mapping[str, Part] | None = None,
) -> CostModel:
    """A `CostModel` of peak rates: an estimate, good for orders of magnitude.

    One direction of a layer takes a quarter of `launch_ms`, as kernels begin and end below their
    rates, and the longer of computing, FLOPs / `flops_per_ms`, and moving weights and activations,
    bytes / `memory_bytes_per_ms`; but at least `launch_ms`, in which the host launches it;
    backward is two forwards, and what it repeats of one; splitting it takes nothing. Where layers
    are cut over shards, each direction of a layer adds up two tensors over them on top (of a
    decoder three), and of an embedding or head one. The optimizer's step is one pass over the state
    of the largest stage.

    Args:
        shape: The model.
        placement: The layers of every stage.
        cluster: The ranks.
        config: The machine's rates, and the modes of recomputation.
        parts: Parts by kind of a model whose family has no closed forms; None for those of `shape`.

    Raises:
        InputError: There are neither parts nor closed forms.
    """
    parts = parts or shape.parts(cluster.n_shards, cluster.n_stream_shards)
    if not parts:
        raise InputError(
            f"the sizes of a {shape.family} do not tell its costs, and neither parts of it nor "
            "measured costs are given"
        )
    element_bytes = config.element_bytes
    parameter_bytes = {
        kind: weights.n_numbers * element_bytes
        for kind, weights in shape.weights(cluster.n_shards).items()
    }
    held = held_weights(parameter_bytes, shape, placement, cluster.n_shards)
    factor = state_factor_of_rank(
        config.state_factor or state_factor(element_bytes), element_bytes, cluster
    )
    state_bytes = held.own * factor + held.copied * factor_of_copies(element_bytes)
    sizes = boundary_sizes(shape, placement, cluster.n_stream_shards)
    stages = StageKinds.from_counts(parts_of_stages(shape, placement), sizes * element_bytes)
    estimates = {
        mode: layer_estimates(
            parts,
            shape.hidden_size,
            element_bytes,
            n_shards=cluster.n_shards,
            recompute=mode,
        )
        for mode in config.recompute_modes
    }
    is_alone = cluster.n_replicas == 1
    return CostModel(
        price=_Rates(config, stages, estimates).price,
        describe=lambda: "estimated from peak rates, not measured",
        recompute_modes=config.recompute_modes,
        static_bytes=state_bytes + held.frozen,
        slice_memory=slice_memory(shape, placement, cluster.n_shards, element_bytes=element_bytes),
        # Gradients once over the network.
        reduce_ms=held.own * (0 if is_alone else 1 / config.reduction_bytes_per_ms),
        step_ms=float(state_bytes.max() / config.memory_bytes_per_ms),
        is_encoder_decoder=shape.has_target_rows,
        kind_of_stage=stages.kind_of_stage,
        window=min(part.window for part in parts.values()),
    )


class _Rates(NamedTuple):
    """The machine's rates, the kinds of stages, and what layers need by mode and kind."""

    config: AnalyticConfig
    stages: StageKinds
    estimates: Mapping[Recompute, Mapping[str, LayerEstimate]]

    def price(
        self, shapes: Shapes, _: Layout, recompute: Recompute, out: FloatArray | None
    ) -> StageCosts:
        if recompute not in self.estimates:
            raise ValueError(f"recomputation '{recompute.text}' is not estimated")
        estimates = self.estimates[recompute]
        layers = np.array(
            [
                self._layer(e, Tokens.from_shapes(e.side, shapes, e.window))
                for e in estimates.values()
            ]
        )
        counts = np.array([self.stages.counts[kind] for kind in estimates])
        added = _Layer(*np.einsum("kqm,ks->qms", layers, counts))
        held = (counts > 0)[:, np.newaxis, np.newaxis]
        forward_bytes, backward_bytes = np.max(layers[:, _SHARED, :, np.newaxis] * held, axis=0)
        sides = (shapes.row_tokens, shapes.target_tokens)
        tokens = np.stack([shapes.n_rows * side for side in sides], axis=1)
        costs = StageCosts.from_times(
            forward_ms=added.forward_ms,
            backward_ms=added.backward_ms,
            weight_ms=added.weight_ms,
            splitting_ms=np.zeros(()),
            stored_bytes=added.stored_bytes,
            forward_transient_bytes=forward_bytes,
            backward_transient_bytes=backward_bytes + added.sum_bytes,
            boundary_bytes=tokens @ self.stages.boundaries.T,
            out=out,
        )
        return StageCosts(costs.table, self.stages.kind_of_stage)

    def _layer(self, estimate: LayerEstimate, tokens: Tokens) -> "_Layer":
        config = self.config
        linear_ms = tokens.times(estimate.work.linear) / config.flops_per_ms
        attention_ms = tokens.times(estimate.work.attention) / config.flops_per_ms
        spared_ms = tokens.times(estimate.work.spared) / config.flops_per_ms
        activation_bytes = tokens.times(estimate.moved_bytes)
        moved_ms = (estimate.read_weight_bytes + activation_bytes) / config.memory_bytes_per_ms
        summed_ms = tokens.times(estimate.summed_bytes) / config.reduction_bytes_per_ms
        computed_ms = linear_ms + attention_ms
        begun_ms = BEGINNING_SHARE * config.launch_ms
        passed_ms = begun_ms + np.maximum(computed_ms, moved_ms)
        forward_ms = np.maximum(passed_ms, config.launch_ms) + summed_ms
        # Where nothing is spared, exactly twice the forward pass.
        twice_ms = np.maximum(BACKWARD_WORK * computed_ms - spared_ms, BACKWARD_WORK * moved_ms)
        back_ms = np.maximum(BACKWARD_WORK * begun_ms + twice_ms, BACKWARD_WORK * config.launch_ms)
        backward_ms = back_ms + BACKWARD_WORK * summed_ms
        repeated_ms = tokens.times(estimate.repeated_flops) / config.flops_per_ms
        weight_ms = np.zeros_like(forward_ms)
        if estimate.deferred_flops != NOTHING:
            deferred_ms = tokens.times(estimate.deferred_flops) / config.flops_per_ms
            written_bytes = estimate.deferred_weight_bytes + activation_bytes
            written_ms = written_bytes / config.memory_bytes_per_ms
            weight_ms = np.maximum(begun_ms + np.maximum(deferred_ms, written_ms), config.launch_ms)
        transient = tokens.times(estimate.transient_bytes).clip(max=estimate.transient_most_bytes)
        masks = tokens.times(estimate.mask_bytes).clip(max=MAX_MASK_BYTES)
        passing = np.max([tokens.times(block) for block in (NOTHING, *estimate.passing_bytes)], 0)
        return _Layer(
            forward_ms=forward_ms,
            backward_ms=backward_ms + repeated_ms,
            weight_ms=weight_ms,
            stored_bytes=tokens.times(estimate.stored_bytes),
            forward_transient_bytes=transient + passing + masks,
            backward_transient_bytes=(
                BACKWARD_WORK * transient
                + masks
                + tokens.times(estimate.repeated_bytes)
                + tokens.times(estimate.term_bytes)
                + estimate.gradient_bytes
            ),
            sum_bytes=tokens.times(estimate.sum_bytes),
        )


class _Layer(NamedTuple):
    """Columns of `StageCosts` for one layer, each of shape (n_microbatches,).

    The last is of none: it is held on top of what the largest backward pass of the stage needs.
    """

    forward_ms: FloatArray
    backward_ms: FloatArray
    weight_ms: FloatArray
    stored_bytes: FloatArray
    forward_transient_bytes: FloatArray
    backward_transient_bytes: FloatArray
    sum_bytes: FloatArray


_SHARED = [
    _Layer._fields.index(name) for name in ("forward_transient_bytes", "backward_transient_bytes")
]
"""Columns that layers share, as they run one after the other; others add up."""
