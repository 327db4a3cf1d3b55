"""Costs and schedules for tests: drawn, of one's choice, or from a text."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule


def equal_stages(
    forward_ms: Sequence[float], n_stages: int, stored_bytes: Sequence[float] | None = None
) -> StageCosts:
    """Micro-batches that cost the same on every stage, with backward twice as long as forward."""
    forward = np.tile(np.array(forward_ms, np.float64)[:, None], (1, n_stages))
    stored = np.ones(len(forward_ms)) if stored_bytes is None else np.array(stored_bytes, float)
    none = np.zeros_like(forward)
    stored_everywhere = np.tile(stored[:, None], (1, n_stages))
    return StageCosts.from_times(
        forward_ms=forward,
        backward_ms=2 * forward,
        weight_ms=forward,
        splitting_ms=none,
        boundary_bytes=none,
        stored_bytes=stored_everywhere,
        forward_transient_bytes=none,
        backward_transient_bytes=none,
    )


def with_columns(costs: StageCosts, **columns: npt.ArrayLike) -> StageCosts:
    """Costs of which some columns, by name, are others; what broadcasts will do."""
    table = costs.table.copy()
    for name, column in columns.items():
        getattr(StageCosts(table), name)[...] = column
    return StageCosts(table)


def no_limit(costs: StageCosts) -> FloatArray:
    """Memory without end on every stage."""
    return np.full(costs.n_stages, np.inf)


# Mostly alike, sometimes a thousand times as much.
_ENTRIES = np.array([*range(10), 1000], np.float64)


@st.composite
def drawn_costs(draw: st.DrawFn) -> StageCosts:
    """Uneven costs of up to 8 micro-batches on up to 5 stages, in whole ms and bytes."""
    n_microbatches, n_stages = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    size = len(Cost) * n_microbatches * n_stages
    # One draw of bytes takes a fraction of the time of a draw for each number.
    codes = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    table = _ENTRIES[codes % len(_ENTRIES)].reshape(n_microbatches, n_stages, len(Cost))
    costs = StageCosts(table)
    return with_columns(costs, weight_ms=np.minimum(costs.weight_ms, costs.backward_ms))


def tightest_limit(costs: StageCosts) -> FloatArray:
    """The least memory with which each micro-batch fits alone, shape (n_stages,)."""
    transient = np.maximum(costs.forward_transient_bytes, costs.backward_transient_bytes)
    return np.asarray((costs.stored_bytes + transient).max(axis=0), np.float64)


KIND_OF = {kind.name[0]: kind for kind in PassKind}


def schedule_of(passes: Iterable[Iterable[Pass]]) -> Schedule:
    codes = [[len(PassKind) * p.microbatch + p.kind for p in row] for row in passes]
    return Schedule(np.array(codes, np.int32))


def parse_schedule(text: str) -> Schedule:
    """The schedule written as text; blank lines and indentation are ignored."""
    rows = (line.split() for line in text.splitlines() if line.strip())
    return schedule_of(map(parse_pass, row) for row in rows)


def parse_pass(text: str) -> Pass:
    return Pass(KIND_OF[text[0]], int(text[1:]))


def splits_backward(schedule: Schedule) -> bool:
    """Whether gradients of weights have passes of their own."""
    return any(p.kind is PassKind.WEIGHT for p in schedule.passes[0])
