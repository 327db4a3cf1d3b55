"""A cost model that one can compute by hand."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.config import (
    DensePackingConfig,
    NaivePaddingConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.choose.choice import Choice, Chooser
from dynapipe_hpc.planner.cost.cost_model import (
    CostModel,
    FloatArray,
    IntArray,
    Price,
    Shapes,
    SliceMemory,
    StageCosts,
)
from dynapipe_hpc.planner.schedule.pipeline import Pipeline, schedule_replica
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule


def linear_cost(
    launch_ms: tuple[float, ...] = (1.0, 1.0),
    token_ms: tuple[float, ...] = (0.01, 0.01),
    token_bytes: float = 2.0,
    model_bytes: float = 0.0,
    *,
    longest_row: int = 1_000_000,
    recomputes: bool = False,
    has_targets: bool = False,
    weights_ms: tuple[float, ...] = (),
    cached_bytes: float = 0.0,
    window: float = np.inf,
) -> CostModel:
    """Costs that grow with the padded tokens of a micro-batch."""
    n_stages = len(launch_ms)
    reduce_ms = np.array(weights_ms or np.zeros(n_stages))
    return CostModel(
        price=linear_price(launch_ms, token_ms, token_bytes, longest_row),
        describe=lambda: "by hand",
        recompute_modes=(Recompute.NONE, Recompute.FULL) if recomputes else (Recompute.NONE,),
        static_bytes=np.full(n_stages, model_bytes),
        slice_memory=SliceMemory.none(n_stages)._replace(kept=np.full(n_stages, cached_bytes)),
        reduce_ms=reduce_ms,
        step_ms=float(reduce_ms.max()),
        is_encoder_decoder=has_targets,
        window=window,
    )


def linear_price(
    launch_ms: tuple[float, ...], token_ms: tuple[float, ...], token_bytes: float, longest_row: int
) -> Price:
    def price(
        shapes: Shapes, _: Layout, recompute: Recompute, out: FloatArray | None
    ) -> StageCosts:
        n_rows, row_tokens, target_tokens = shapes[:3]
        all_tokens = n_rows * (row_tokens + target_tokens)
        tokens = np.where(row_tokens <= longest_row, all_tokens, np.inf)[:, None]
        pass_ms = (np.array(launch_ms) + tokens * np.array(token_ms)) / 2
        is_full = recompute is Recompute.FULL
        stored_bytes = np.broadcast_to(tokens * token_bytes, pass_ms.shape).copy()
        return StageCosts.from_times(
            forward_ms=pass_ms,
            backward_ms=2 * pass_ms if is_full else pass_ms,
            weight_ms=pass_ms / 2,
            splitting_ms=np.where(np.isinf(pass_ms), np.inf, 0.0),
            boundary_bytes=np.where(np.arange(pass_ms.shape[1]) < pass_ms.shape[1] - 1, tokens, 0),
            stored_bytes=stored_bytes / 4 if is_full else stored_bytes,
            forward_transient_bytes=stored_bytes / 4,
            backward_transient_bytes=stored_bytes / 2,
            out=out,
        )

    return price


def changed(cost: CostModel, change: Callable[[Shapes, StageCosts], StageCosts]) -> CostModel:
    """Costs that a function makes of those of another model."""

    def price(
        shapes: Shapes, layout: Layout, recompute: Recompute, out: FloatArray | None
    ) -> StageCosts:
        return change(shapes, cost.price(shapes, layout, recompute, out))

    return replace(cost, price=price)


def packed_apart(padded: CostModel, packed: CostModel) -> CostModel:
    """Costs of padded rows as in one model, and of packed ones as in another."""

    def price(
        shapes: Shapes, layout: Layout, recompute: Recompute, out: FloatArray | None
    ) -> StageCosts:
        cost = packed if layout is Layout.PACKED else padded
        return cost.price(shapes, layout, recompute, out)

    return replace(padded, price=price, layouts=(Layout.PADDED, Layout.PACKED))


def samples_of(lengths: Iterable[int]) -> list[Sample]:
    """Samples 0, 1, ... of the given numbers of tokens, one of which is the target."""
    return [Sample(i, tokens - 1, 1) for i, tokens in enumerate(lengths)]


def decoder_shapes(n_rows: IntArray, row_tokens: IntArray) -> Shapes:
    """Those without a target side."""
    return Shapes.padded(n_rows, row_tokens, np.zeros_like(row_tokens))


def naive(rows: int) -> NaivePaddingConfig:
    return NaivePaddingConfig(rule="naive_padding", rows_per_microbatch=rows)


def dense(row_tokens: int, rows: int) -> DensePackingConfig:
    return DensePackingConfig(rule="dense_packing", row_tokens=row_tokens, rows_per_microbatch=rows)


def budget(tokens: int) -> TokenBudgetConfig:
    return TokenBudgetConfig(rule="token_budget", tokens_per_microbatch=tokens)


@dataclass(frozen=True)
class EveryChooser:
    choosers: Sequence[Chooser]

    def choose(self, samples: Sequence[Sample]) -> Choice:
        return Choice(tuple(t for each in self.choosers for t in each.choose(samples).tried))


def schedule_pipeline(
    microbatches: Sequence[MicroBatch],
    cost: CostModel,
    cluster: Cluster,
    rules: Sequence[ScheduleRule],
) -> Pipeline:
    return schedule_replica(PricedReplica.formed(microbatches, cost), cost, cluster, rules)
