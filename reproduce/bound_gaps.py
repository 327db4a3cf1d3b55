"""Gaps of plans above a bound that no plan can beat."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.recorded import RESULTS, recorded

MOST = 1.5
"""Gap in percent that is wanted of the median batch with one replica and 65,536 tokens or more."""
CASE = re.compile(
    r"(?P<kind>both|fused) split gpt_max(?P<longest>\d+)_gbs(?P<tokens>\d+) x(?P<replicas>\d+) "
    r"(?P<effort>\d+)"
)


def figure(results: Path = RESULTS / "bound_gaps.json") -> Figure:
    """Gaps over the effort of the search.

    Args:
        results: The JSON file that `benchmarks/bound_gaps.py` writes.
    """
    found = recorded(results, "benchmarks/bound_gaps.py")
    rows: list[Row] = [
        {
            "attention": "fused, estimated" if case["kind"] == "fused" else "table of 2023",
            "replicas": int(case["replicas"]),
            "method": f"{int(case['tokens']):,} tokens, samples to {int(case['longest']):,}",
            "tokens": int(case["tokens"]),
            "effort": int(case["effort"]),
            "gap": gaps["median"],
            "largest": gaps["worst"],
            "trip": gaps["trip"],
        }
        for name, gaps in found.results.items()
        if (case := CASE.fullmatch(name))
    ]
    return Figure(
        "bound_gaps",
        "How much shorter could an iteration be at most?",
        "Predicted: the paper's GPT batches on four stages, padded and packed rows, split backward "
        f"passes, medians of three batches, computed {found.where}.",
        "Gaps of a few percent that shrink with the effort of the search (100,000 by default); "
        "where one long sample sets the time, the bound is far below what is possible. The trip is "
        "the share of the iteration that the longest sample's own way through the stages takes, "
        "which is part of the bound: only plans that cut samples could be shorter.",
        rows,
        partial(_draw, [row for row in rows if row["attention"] == "table of 2023"]),
        [*_claims(rows)],
    )


def _draw(rows: Sequence[Row], path: Path) -> None:
    numbers = dict.fromkeys(int(row["replicas"]) for row in rows)
    panels = {
        f"{n} replica{'s' if n > 1 else ''}": [row for row in rows if row["replicas"] == n]
        for n in numbers
    }
    draw_lines(path, panels, "effort", "gap", "passes of the search", "gap to the bound in %")


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    least = min(int(row["effort"]) for row in rows)
    asked = [
        row
        for row in rows
        if row["replicas"] == 1 and int(row["tokens"]) >= 65_536 and row["effort"] == least
    ]
    fused = [row for row in asked if row["attention"] != "table of 2023"]
    asked = [row for row in asked if row not in fused]
    yield Claim(
        "Bound (ours)",
        f"plans with all layouts and split backward passes are within {MOST:g} % of the bound, one "
        "replica, 65,536 tokens or more",
        "-",
        "; ".join(_gap(row) for row in asked),
        all(float(row["gap"]) <= MOST for row in asked),
        "medians of three batches; in parentheses the share of the iteration that the longest "
        "sample's own trip takes, a part of the bound. With fused attention, by times estimated "
        f"from an A100's rates: {'; '.join(map(_gap, fused))}. So the largest gap belongs to the "
        "table of 2023, in which attention writes all scores",
    )


def _gap(row: Row) -> str:
    return f"{row['method']}: {float(row['gap']):.1f} % ({float(row['trip']):.0f} %)"
