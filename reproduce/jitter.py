"""Iterations whose passes take other times than predicted: in the planned order, and in others."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.recorded import RESULTS, recorded

CASE = re.compile(r"a100_80gb, (?P<batches>.*); random (?P<percent>\d+)%")
METHODS = {
    "fixed": "planned order",
    "hint": "what is ready first, in the planned order",
    "1F1B": "1F1B, whole samples",
    "work": "work of the busiest stage",
}
MAX_LOSS = 0.03
"""Share by which an iteration may take longer in the planned order, for its proof."""


def figure(results: Path = RESULTS / "jitter.json") -> Figure:
    """Times over the undisturbed plan, over the disturbance.

    Args:
        results: The JSON file that `benchmarks/jitter.py` writes.
    """
    found = recorded(results, "benchmarks/jitter.py")
    rows: list[Row] = [
        {
            "method": name,
            "batches": case["batches"],
            "percent": int(case["percent"]),
            "over_plan": times[method],
        }
        for of_case, times in found.results.items()
        if (case := CASE.fullmatch(of_case))
        for method, name in METHODS.items()
    ]
    return Figure(
        "jitter",
        "What does a fixed order of passes cost where times are not those predicted?",
        "Predicted: plans with slices of a Llama 3 8B by estimates from an A100's rates, executed "
        "with times of passes that are drawn up to so many per cent above or below, six batches "
        f"and five draws each; over the time of the undisturbed plan; computed {found.where}.",
        "The planned order and that of what is ready both stay near the work; 1F1B does not.",
        rows,
        partial(_draw, rows),
        [*_claims(rows)],
    )


def _draw(rows: Sequence[Row], path: Path) -> None:
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(str(row["batches"]), []).append(row)
    draw_lines(
        path, panels, "percent", "over_plan", "per cent, at most", "time over plan", is_log=False
    )


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    times = {
        method: {
            (row["batches"], row["percent"]): float(row["over_plan"])
            for row in rows
            if row["method"] == name
        }
        for method, name in METHODS.items()
    }
    losses = [
        times["fixed"][case] / min(times["fixed"][case], hint) - 1
        for case, hint in times["hint"].items()
    ]
    yield Claim(
        "Order (ours)",
        "a fixed order of passes loses at most 3 % to running what is ready first",
        "-",
        f"at most {100 * max(losses):.1f} %",
        max(losses) <= MAX_LOSS,
        "for that it is proven that a plan ends, within memory",
    )
    gains = [ms / times["fixed"][case] for case, ms in times["1F1B"].items()]
    yield Claim(
        "Order (ours)",
        "plans stay ahead of 1F1B where passes take up to 20 % more or less",
        "-",
        f"{min(gains):.2f}x to {max(gains):.2f}x",
        min(gains) > 1,
    )
