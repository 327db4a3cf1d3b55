"""How long planning takes, and how that compares with the iteration that is planned."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from reproduce import methods
from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.packing import Points
from reproduce.studies import MODELS, SEEDS

PLANNERS = (methods.PUBLISHED, methods.PADDED, methods.ALL)
MOST, PAPER_MOST = 0.05, 12.9


def figure(points: Points) -> Figure:
    """Planning of the figure of throughput, on the best division of each method."""
    rows = [
        _row(*key, [(p.planning_ms, p.record.iteration_ms) for p in point.planned])
        for key, point in points.items()
        if key[2] in PLANNERS
    ]
    return Figure(
        "planning_time",
        "Does one processor core plan faster than the cluster trains?",
        "Measured: processor time of one thread on the machine that made this page, from lengths "
        "to the checked bytes of the plans of all ranks. Simulated: the iteration that it is "
        f"divided by. The ratio is that of averages over all batches of {len(SEEDS)} seeds, as in "
        "the paper. Tables of costs, which a process makes once, are made before.",
        "The paper's planner takes up to 12.9 iterations, and is spread over many cores. Here one "
        "core takes a small part of an iteration.",
        rows,
        partial(_draw, rows),
        [*_claims(rows)],
    )


def _row(family: str, longest: int, method: str, times: Sequence[tuple[float, float]]) -> Row:
    return {
        "model": MODELS[family],
        "longest": longest,
        "method": method,
        "planning_ms": median(planning for planning, _ in times),
        "ratio": sum(p for p, _ in times) / sum(iteration for _, iteration in times),
        "largest_ratio": max(planning / iteration for planning, iteration in times),
    }


def _draw(rows: Sequence[Row], path: Path) -> None:
    panels = {model: [row for row in rows if row["model"] == model] for model in MODELS.values()}
    label = "average planning / average iteration"
    draw_lines(path, panels, "longest", "ratio", "longest sample in tokens", label)


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    for method in dict.fromkeys(str(row["method"]) for row in rows):
        largest = [float(row["largest_ratio"]) for row in rows if row["method"] == method]
        ratios = [float(row["ratio"]) for row in rows if row["method"] == method]
        is_ours = method != methods.PUBLISHED
        name, most = ("C4 (ours)", MOST) if is_ours else ("C4", PAPER_MOST)
        yield Claim(
            name,
            f"planning takes one core less than {most} iterations: {method}",
            f"up to {PAPER_MOST}",
            f"{min(ratios):.3f} to {max(ratios):.3f}; of single batches at most {max(largest):.3f}",
            max(ratios) < most,
            "" if is_ours else "our implementation of the published planner, in compiled code",
        )
