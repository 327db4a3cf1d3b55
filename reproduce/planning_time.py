"""Planning time, compared with the iteration that is planned."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from reproduce import methods
from reproduce.best_division import Points
from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.settings import FIXED_TOKENS, Setting
from reproduce.studies import SEEDS

PLANNERS = (methods.PUBLISHED, methods.PADDED, methods.ALL)
PAPER_MOST = 12.9
MOST = 0.05
"""Part of an iteration that planning may take one core."""


def figure(points: Points) -> Figure:
    """Planning of the figures of throughput, on the best division of each method."""
    rows = [
        _row(*key, [(p.planning_ms, p.record.iteration_ms) for p in points[key].planned])
        for key in sorted(points)
        if key[1] in PLANNERS
    ]
    return Figure(
        "planning_time",
        "Does one processor core plan faster than the cluster trains?",
        "Measured: processor time of one thread on the machine that made this page, from lengths "
        "to the checked bytes of the plans of all ranks. Simulated: the iteration that it is "
        f"divided by. The ratio is that of averages over all batches of {len(SEEDS)} seeds, as in "
        "the paper. Tables of costs, which a process makes once, are made before.",
        "The paper's planner takes up to 12.9 iterations, and is spread over many cores. Here one "
        "core takes a part of an iteration, a larger one the more GPUs train.",
        rows,
        partial(_draw, rows),
        [*_claims(rows)],
    )


def _row(setting: Setting, method: str, times: Sequence[tuple[float, float]]) -> Row:
    return {
        "model": setting.model,
        "gpus": setting.n_gpus,
        "longest": setting.longest,
        "tokens": setting.tokens,
        "method": method,
        "planning_ms": median(planning for planning, _ in times),
        "ratio": sum(p for p, _ in times) / sum(iteration for _, iteration in times),
        "largest_ratio": max(planning / iteration for planning, iteration in times),
    }


def _draw(rows: Sequence[Row], path: Path) -> None:
    drawn = [row for row in rows if row["tokens"] == FIXED_TOKENS]
    models = dict.fromkeys(str(row["model"]) for row in drawn)
    panels = {model: [row for row in drawn if row["model"] == model] for model in models}
    label = "average planning / average iteration"
    draw_lines(path, panels, "longest", "ratio", "longest sample in tokens", label)


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    published, *ours = PLANNERS
    why = "our implementation of the published planner, in compiled code"
    yield _claim("C4", rows, published, PAPER_MOST, why)
    for method in ours:
        why = "on this machine as it was then; while a shared one is busy, up to 1.5 times as much"
        yield _claim("C4 (ours)", rows, method, MOST, why)


def _claim(name: str, rows: Sequence[Row], method: str, most: float, why: str) -> Claim:
    largest = [float(row["largest_ratio"]) for row in rows if row["method"] == method]
    ratios = [float(row["ratio"]) for row in rows if row["method"] == method]
    return Claim(
        name,
        f"planning takes one core less than {most:g} iterations on 4 to 32 GPUs: {method}",
        f"up to {PAPER_MOST}",
        f"{min(ratios):.3f} to {max(ratios):.3f}; of single batches at most {max(largest):.3f}",
        max(ratios) < most,
        why,
    )
