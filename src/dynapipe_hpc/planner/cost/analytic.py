"""Costs estimated from the model's arithmetic, for machines that were not profiled."""

from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, Shapes, StageCosts
from dynapipe_hpc.planner.cost.model_state import state_factor_of_rank
from dynapipe_hpc.planner.cost.stage_parts import (
    EMBEDDING,
    HEAD,
    LAYER,
    parameters_of,
    parts_of_stages,
)

BACKWARD_WORK = 2  # gradients of inputs and of weights: two products where forward has one
LOGIT_BYTES = 4  # the loss is computed in float32 whatever the activations are


class AnalyticCost:
    """A `CostModel` of peak rates: an estimate, good for orders of magnitude.

    One direction of a layer takes `launch_ms` plus the longer of computing,
    FLOPs / `flops_per_ms`, and moving weights and activations, bytes / `memory_bytes_per_ms`;
    backward is two forwards. Where layers are cut over shards, each direction of a layer adds up
    two tensors over them on top, and of an embedding or head one.

    Args:
        shape: The model.
        cluster: The stages it is spread over.
        config: The machine's rates.
    """

    def __init__(self, shape: ModelShape, cluster: Cluster, config: AnalyticConfig) -> None:
        self._config = config
        self._cluster = cluster
        boundaries = (np.arange(cluster.n_stages) < cluster.n_stages - 1).astype(np.float64)
        self._boundary_bytes_per_token = boundaries * shape.hidden_size * config.element_bytes
        self._counts = parts_of_stages(shape, cluster.n_stages)
        self._estimates = layer_estimates(shape, config.element_bytes, cluster.n_shards)

    @property
    def description(self) -> str:
        """Where the numbers come from, for people."""
        return "estimated from peak rates, not measured"

    @property
    def is_encoder_decoder(self) -> bool:
        """Only decoder-only models are known."""
        return False

    @property
    def monotone(self) -> "AnalyticCost":
        """Itself: estimates have no noise."""
        return self

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """Only to keep what the backward pass needs."""
        return (Recompute.NONE,)

    @property
    def static_bytes(self) -> FloatArray:
        """Shape (n_stages,): weights, gradients and optimizer state."""
        config = self._config
        factor = state_factor_of_rank(config.state_factor, config.element_bytes, self._cluster)
        return self._weight_bytes * factor

    @property
    def update_ms(self) -> float:
        """Reduction of gradients over replicas, then one pass over the state."""
        step_ms = self.static_bytes / self._config.memory_bytes_per_ms
        reduce_ms = self._weight_bytes / self._config.reduction_bytes_per_ms
        return float(np.max(step_ms + (reduce_ms if self._cluster.n_replicas > 1 else 0)))

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        """Costs of micro-batches, see `CostModel`."""
        n_rows, row_tokens, _ = shapes
        if recompute not in self.recompute_modes:
            raise ValueError(f"recomputation '{recompute.text}' is not estimated")
        tokens = np.asarray(n_rows * row_tokens, dtype=np.float64)
        parts = [(estimate, self._counts[kind]) for kind, estimate in self._estimates.items()]
        passes = [(self._pass_ms(e, tokens, row_tokens), e, count) for e, count in parts]
        forward_ms: FloatArray = np.sum([np.outer(ms, count) for ms, _, count in passes], axis=0)
        weight_ms: FloatArray = np.sum(
            [np.outer(ms * e.linear_share(row_tokens), count) for ms, e, count in passes], axis=0
        )
        stored: FloatArray = np.sum(
            [np.outer(tokens * e.stored_bytes, count) for e, count in parts], axis=0
        )
        transient: FloatArray = np.max(
            [np.outer(tokens * e.transient_bytes, count > 0) for e, count in parts], axis=0
        )
        return StageCosts.of(
            forward_ms=forward_ms,
            backward_ms=BACKWARD_WORK * forward_ms,
            weight_ms=weight_ms,
            stored_bytes=stored,
            forward_transient_bytes=transient,
            backward_transient_bytes=BACKWARD_WORK * transient,
            boundary_bytes=np.outer(tokens, self._boundary_bytes_per_token),
            out=out,
        )

    @property
    def _weight_bytes(self) -> FloatArray:
        parts = [self._counts[kind] * e.weight_bytes for kind, e in self._estimates.items()]
        total: FloatArray = np.sum(parts, axis=0)
        return total

    def _pass_ms(
        self, estimate: "LayerEstimate", tokens: FloatArray, row_tokens: IntArray
    ) -> FloatArray:
        flops = tokens * (estimate.flops + estimate.attention_flops * row_tokens)
        moved_bytes = estimate.read_weight_bytes + tokens * (
            estimate.stored_bytes + estimate.transient_bytes
        )
        busy_ms: FloatArray = np.maximum(
            flops / self._config.flops_per_ms, moved_bytes / self._config.memory_bytes_per_ms
        )
        summed_ms = tokens * estimate.summed_bytes / self._config.reduction_bytes_per_ms
        return self._config.launch_ms + busy_ms + summed_ms


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """What one layer of a kind needs in the forward direction.

    Attributes:
        weight_bytes: Its weights.
        read_weight_bytes: Of these, what every micro-batch reads.
        flops: Per token.
        attention_flops: Per token and token of its row, on top.
        stored_bytes: Per token, kept for the backward pass.
        transient_bytes: Per token, on top while the pass runs.
        summed_bytes: Per token, tensors that are added up over shards.
    """

    weight_bytes: int
    read_weight_bytes: int
    flops: int
    attention_flops: int
    stored_bytes: int
    transient_bytes: int
    summed_bytes: int

    def linear_share(self, row_tokens: IntArray) -> FloatArray:
        """Of the FLOPs, those of linear maps: gradients of their weights take as much again."""
        return np.asarray(self.flops / (self.flops + self.attention_flops * row_tokens))


def layer_estimates(
    shape: ModelShape, element_bytes: int, n_shards: int = 1
) -> dict[str, LayerEstimate]:
    """Of one shard, by kind, with attention fused: no matrix of scores is kept.

    Args:
        shape: The model.
        element_bytes: Size of one number of an activation or weight.
        n_shards: Ranks over which heads, inner widths and the vocabulary are cut.
    """
    h, f, vocabulary = shape.hidden_size, shape.ffn_size // n_shards, shape.vocab_size // n_shards
    heads = h // n_shards  # width of a shard's
    weights = {kind: n * element_bytes for kind, n in parameters_of(shape, n_shards).items()}
    summed_bytes = element_bytes * h if n_shards > 1 else 0
    return {
        LAYER: LayerEstimate(
            weight_bytes=weights[LAYER],
            read_weight_bytes=weights[LAYER],
            flops=8 * h * heads + 4 * h * f,
            attention_flops=4 * heads,
            stored_bytes=element_bytes * (4 * h + 4 * heads + 2 * f),
            transient_bytes=element_bytes * (h + f),
            summed_bytes=2 * summed_bytes,
        ),
        EMBEDDING: LayerEstimate(
            weight_bytes=weights[EMBEDDING],
            read_weight_bytes=0,
            flops=h,
            attention_flops=0,
            stored_bytes=0,
            transient_bytes=element_bytes * h,
            summed_bytes=summed_bytes,
        ),
        HEAD: LayerEstimate(
            weight_bytes=weights[HEAD],
            read_weight_bytes=weights[HEAD],
            flops=2 * h * vocabulary,
            attention_flops=0,
            stored_bytes=element_bytes * 2 * h + LOGIT_BYTES * vocabulary,
            transient_bytes=LOGIT_BYTES * vocabulary,
            summed_bytes=summed_bytes,
        ),
    }
