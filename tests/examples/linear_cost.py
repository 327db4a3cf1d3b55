"""A cost model that one can compute by hand."""

from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import (
    Cost,
    FloatArray,
    KnownRows,
    Shapes,
    SliceMemory,
    StageCosts,
)


@dataclass(frozen=True)
class LinearCost:
    """Costs that grow with the padded tokens of a micro-batch.

    Attributes:
        launch_ms: Per stage, time of an empty micro-batch, forward and backward.
        token_ms: Per stage, time of a token on top; half of it forward.
        token_bytes: Kept per token on every stage; half of that is transient on top.
        model_bytes: Static memory of every stage.
        longest_row: Longest row that was measured.
        recomputes: Whether full recomputation is known, too. It keeps a quarter, and its
            backward pass takes twice as long.
        cached_bytes: Per token of a sliced sample, what its first slice keeps on every stage.
        weights_ms: Per stage, time of its reduction, and of its step; none if left out.
        window: Number of tokens that attention with a window sees.
        has_targets: Whether rows have a target side; its tokens cost as much as all others.
    """

    launch_ms: tuple[float, ...] = (1.0, 1.0)
    token_ms: tuple[float, ...] = (0.01, 0.01)
    token_bytes: float = 2.0
    model_bytes: float = 0.0
    longest_row: int = 1_000_000
    recomputes: bool = False
    has_targets: bool = False
    weights_ms: tuple[float, ...] = ()
    cached_bytes: float = 0.0
    window: float = np.inf

    @property
    def description(self) -> str:
        return "by hand"

    @property
    def slowness(self) -> None:
        return None

    @property
    def kind_of_stage(self) -> None:
        return None

    @property
    def static_bytes(self) -> FloatArray:
        return np.full(len(self.launch_ms), self.model_bytes)

    @property
    def slice_memory(self) -> SliceMemory:
        n_stages = len(self.launch_ms)
        return SliceMemory.none(n_stages)._replace(kept=np.full(n_stages, self.cached_bytes))

    @property
    def cache_cost(self) -> Cost:
        return Cost.STORED_BYTES

    @property
    def reduce_ms(self) -> FloatArray:
        return np.array(self.weights_ms or np.zeros(len(self.launch_ms)))

    @property
    def step_ms(self) -> float:
        return float(self.reduce_ms.max())

    @property
    def is_encoder_decoder(self) -> bool:
        return self.has_targets

    @property
    def known_rows(self) -> KnownRows:
        return KnownRows()

    @property
    def monotone(self) -> "LinearCost":
        return self

    def of_layout(self, _layout: Layout) -> "LinearCost":
        return self

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        return (Recompute.NONE, Recompute.FULL) if self.recomputes else (Recompute.NONE,)

    def stage_costs(
        self,
        shapes: Shapes,
        recompute: Recompute = Recompute.NONE,
        out: FloatArray | None = None,
    ) -> StageCosts:
        n_rows, row_tokens, target_tokens, _ = shapes
        all_tokens = n_rows * (row_tokens + target_tokens)
        tokens = np.where(row_tokens <= self.longest_row, all_tokens, np.inf)[:, None]
        pass_ms = (np.array(self.launch_ms) + tokens * np.array(self.token_ms)) / 2
        is_full = recompute is Recompute.FULL
        stored_bytes = np.broadcast_to(tokens * self.token_bytes, pass_ms.shape).copy()
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
