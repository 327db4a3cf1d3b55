"""Sensitivity of schedules to micro-batches that take unequal times."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.rules import adaptive, cyclic, one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, Schedule
from dynapipe_hpc.planner.schedule.simulate import simulate
from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row

N_STAGES = (4, 8, 16)
MICROBATCHES_PER_STAGE = 4
DEVIATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)
SEEDS = range(15)
SHORTEST = 0.05
"""Least time of a forward pass, where the drawn one is shorter."""
IN_ORDER, CYCLIC, ADAPTIVE = "1F1B", "cyclic (the paper's)", "adaptive"
METHODS = (IN_ORDER, CYCLIC, ADAPTIVE)


def figure() -> Figure:
    """Makespans on pipelines of different depths."""
    rows = [
        row
        for n_stages in N_STAGES
        for deviation in DEVIATIONS
        for row in _rows(n_stages, deviation, _makespans(n_stages, deviation))
    ]
    return Figure(
        "variation",
        "How well do schedules bear micro-batches that take unlike times?",
        f"Simulated: {MICROBATCHES_PER_STAGE} micro-batches per stage, whose forward passes take 1 "
        "and backward passes 2 on average, multiplied by one plus normal noise per micro-batch, "
        f"the same on all stages; {len(SEEDS)} seeds, medians with their range. Stages have memory "
        "for twice what 1F1B holds, transfers take no time, and rules know all times. The makespan "
        "is divided by that of 1F1B with equal micro-batches of the same sum.",
        "That of 1F1B grows quickly, more so with more stages; adaptive schedules grow slowly.",
        rows,
        partial(_draw, rows),
        [*_claims(rows)],
    )


def makespans(factors: FloatArray, n_stages: int) -> Mapping[str, float]:
    """Makespan of every method.

    Args:
        factors: Time of each micro-batch's forward passes, shape (n_microbatches,).
        n_stages: Number of stages.
    """
    costs = _costs(factors, n_stages)
    room = np.full(n_stages, 2.0 * n_stages)
    none = np.zeros(n_stages)

    def of(schedule: Schedule) -> float:
        return simulate(schedule, costs, INSTANT, none).makespan_ms

    return {
        IN_ORDER: of(one_f_one_b(costs, room, INSTANT)),
        CYCLIC: of(cyclic(costs, room, INSTANT)),
        ADAPTIVE: of(adaptive(costs, room, INSTANT)),
    }


def _costs(factors: FloatArray, n_stages: int) -> StageCosts:
    forward_ms = np.repeat(factors[:, np.newaxis], n_stages, axis=1)
    nothing = np.zeros_like(forward_ms)
    return StageCosts.from_times(
        forward_ms=forward_ms,
        backward_ms=2 * forward_ms,
        weight_ms=nothing,
        splitting_ms=nothing,
        boundary_bytes=nothing,
        stored_bytes=np.ones_like(forward_ms),
        forward_transient_bytes=nothing,
        backward_transient_bytes=nothing,
    )


def _makespans(n_stages: int, deviation: float) -> Sequence[Mapping[str, float]]:
    """Makespans of every seed, relative to those of 1F1B without noise."""
    n_microbatches = MICROBATCHES_PER_STAGE * n_stages
    equal = makespans(np.ones(n_microbatches), n_stages)[IN_ORDER]
    found = []
    for seed in SEEDS:
        noise = np.random.default_rng(seed).normal(0, deviation, n_microbatches)
        drawn = np.maximum(1 + noise, SHORTEST)
        of_seed = makespans(drawn / drawn.mean(), n_stages)
        found.append({method: ms / equal for method, ms in of_seed.items()})
    return found


def _rows(
    n_stages: int, deviation: float, of_seeds: Sequence[Mapping[str, float]]
) -> Iterator[Row]:
    for method in METHODS:
        ratios = [of_seed[method] for of_seed in of_seeds]
        yield {
            "stages": n_stages,
            "deviation": deviation,
            "method": method,
            "makespan": median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }


def _draw(rows: Sequence[Row], path: Path) -> None:
    panels = {f"{n} stages": [row for row in rows if row["stages"] == n] for n in N_STAGES}
    label = "makespan / that of equal micro-batches"
    draw_lines(path, panels, "deviation", "makespan", "standard deviation", label, is_log=False)


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    largest = max(DEVIATIONS)
    found = {
        (int(row["stages"]), row["method"]): float(row["makespan"])
        for row in rows
        if row["deviation"] == largest
    }
    in_order = [found[n, IN_ORDER] for n in N_STAGES]
    text = f"1F1B takes longer the more times vary, and with more stages (deviation {largest})"
    said = ", ".join(f"{r:.2f}x on {n} stages" for n, r in zip(N_STAGES, in_order, strict=True))
    grows = in_order[0] > 1 and in_order == sorted(in_order)
    yield Claim("Figure 7", text, "drawn only", said, grows)
    for method in (CYCLIC, ADAPTIVE):
        ratios = [found[n, method] / found[n, IN_ORDER] for n in N_STAGES]
        said = ", ".join(f"{r:.2f}x on {n}" for n, r in zip(N_STAGES, ratios, strict=True))
        yield Claim(
            "Figure 7" if method == CYCLIC else "Figure 7 (ours)",
            f"{method} takes less time than 1F1B (deviation {largest})",
            "drawn only" if method == CYCLIC else "-",
            f"{said} stages, of 1F1B",
            max(ratios) < 1,
        )
