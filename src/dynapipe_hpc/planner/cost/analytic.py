"""Costs estimated from the model's arithmetic, for machines that were not profiled."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import (
    BACKWARD_WORK,
    EMBEDDING,
    MAX_MASK_BYTES,
    NOTHING,
    Amount,
    Part,
    Side,
    total,
)
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    CostModel,
    FloatArray,
    Kinds,
    Shapes,
    StageCosts,
)
from dynapipe_hpc.planner.cost.model_state import (
    factor_of_copies,
    held_weights,
    slice_memory,
    state_factor,
    state_factor_of_rank,
)
from dynapipe_hpc.planner.cost.stage_parts import StageKinds, boundary_sizes, parts_of_stages


class LayerEstimate(NamedTuple):
    """Work and bytes of one part of a kind on one shard, split by whether they depend on tokens.

    Both halves are in the order of estimate_costs.hpp.
    """

    side: Side
    window: float
    needs: Sequence[Amount]
    own_bytes: Sequence[float]


def layer_estimates(
    parts: Mapping[str, Part],
    hidden_size: int,
    element_bytes: int,
    *,
    n_shards: int = 1,
    recompute: Recompute = Recompute.NONE,
) -> dict[str, LayerEstimate]:
    token_bytes = element_bytes * hidden_size
    estimates = {}
    for kind, part in parts.items():
        transient = part.transient_bytes(element_bytes)
        n_read = 0 if kind == EMBEDDING else part.parameters  # few rows are looked up
        deferred = part.deferred_work(recompute)
        n_deferred = (deferred.per_own + deferred.per_source) // 2  # a product and a sum for each
        needs = (
            part.work.linear,
            part.work.attention,
            part.work.spared,
            deferred,
            part.recomputed_work(recompute),
            total(part.kept_bytes(Recompute.NONE, element_bytes), transient),
            Amount(part.n_sums * token_bytes) if n_shards > 1 else NOTHING,
            part.kept_bytes(recompute, element_bytes),
            transient,
            part.mask_bytes,
            part.recomputed_bytes(recompute, element_bytes),
            part.gradient_term.times(element_bytes),
            part.gradient_sum.times(element_bytes),
            *part.passing_bytes(recompute, element_bytes),
        )
        own_bytes = (
            n_read * element_bytes,
            n_deferred * element_bytes,
            part.largest_weight * element_bytes,
            part.transient_most_bytes(element_bytes),
            MAX_MASK_BYTES,
        )
        estimates[kind] = LayerEstimate(part.side, part.window, needs, own_bytes)
    return estimates


BEGINNING_SHARE = 0.25
"""Time by which a layer's kernels take longer than at their rates, as a fraction of `launch_ms`; as
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
    rates, plus the longer of computing, FLOPs / `flops_per_ms`, and moving weights and activations,
    bytes / `memory_bytes_per_ms`; but at least `launch_ms`, in which the host launches it.
    Backward takes two forwards plus what it recomputes; splitting it is free. Where layers are
    sharded, each direction of a layer also sums two tensors over shards (a decoder layer three, an
    embedding or head one). The optimizer's step is one pass over the state of the largest stage.

    Args:
        shape: The model.
        placement: The layers of every stage.
        cluster: The ranks.
        config: The machine's rates, and the modes of recomputation.
        parts: Parts by kind, if the model's family has no closed forms; None means `shape.parts`.

    Raises:
        InputError: There are neither parts nor closed forms.
    """
    parts = parts or shape.parts(cluster.n_shards, cluster.n_stream_shards)
    if not parts:
        raise InputError(
            f"the costs of a {shape.family} cannot be computed from its sizes; give its parts, or "
            "measured costs"
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
    counts = np.array([stages.counts[kind] for kind in parts])
    needs = {mode: _Estimates.from_layers([*each.values()]) for mode, each in estimates.items()}
    is_alone = cluster.n_replicas == 1
    return CostModel(
        price=_Rates(config, stages, counts, needs).price,
        describe=lambda: "estimated from peak rates, not measured",
        recompute_modes=config.recompute_modes,
        static_bytes=state_bytes + held.frozen,
        slice_memory=slice_memory(shape, placement, cluster.n_shards, element_bytes=element_bytes),
        # Gradients cross the network once.
        reduce_ms=held.own * (0 if is_alone else 1 / config.reduction_bytes_per_ms),
        step_ms=float(state_bytes.max() / config.memory_bytes_per_ms),
        is_encoder_decoder=shape.has_target_rows,
        kind_of_stage=stages.kind_of_stage,
        window=min(part.window for part in parts.values()),
    )


class _Estimates(NamedTuple):
    """Work and bytes of a model's layers in a mode, as arguments of the kernel of estimates."""

    sides: Kinds
    windows: FloatArray
    needs: FloatArray
    own_bytes: FloatArray

    @classmethod
    def from_layers(cls, layers: Sequence[LayerEstimate]) -> Self:
        most = max(len(layer.needs) for layer in layers)
        needs = [[*layer.needs, *[NOTHING] * (most - len(layer.needs))] for layer in layers]
        return cls(
            np.array([layer.side for layer in layers], np.int32),
            np.array([layer.window for layer in layers], np.float64),
            np.array(needs, np.float64).transpose(0, 2, 1).copy(),
            np.array([layer.own_bytes for layer in layers], np.float64),
        )


class _Rates(NamedTuple):
    """The machine's rates, what the kinds of stages hold and send, and needs by mode."""

    config: AnalyticConfig
    stages: StageKinds
    counts: FloatArray
    estimates: Mapping[Recompute, _Estimates]

    def price(
        self, shapes: Shapes, _: Layout, recompute: Recompute, out: FloatArray | None
    ) -> StageCosts:
        if recompute not in self.estimates:
            raise ValueError(f"recomputation '{recompute.text}' is not estimated")
        config, n_kinds = self.config, len(self.stages.boundaries)
        n_rows, *others = (np.ascontiguousarray(side, np.float64) for side in shapes)
        row_tokens, target_tokens, input_rows = others
        costs = np.empty((len(n_rows), n_kinds, len(Cost))) if out is None else out
        rates = (
            config.flops_per_ms,
            config.memory_bytes_per_ms,
            config.reduction_bytes_per_ms,
            config.launch_ms,
            BEGINNING_SHARE * config.launch_ms,
            BACKWARD_WORK,
        )
        needs = self.estimates[recompute]
        _kernels.estimate_costs(
            needs.sides,
            needs.windows,
            needs.needs,
            needs.own_bytes,
            rates,
            self.counts,
            self.stages.boundaries,
            n_rows,
            row_tokens,
            target_tokens,
            input_rows,
            costs,
        )
        return StageCosts(costs, self.stages.kind_of_stage)
