"""Gain of a run that corrects the costs it was planned with."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from reproduce.figure import Claim, Figure, Row
from reproduce.rates import draw_settings
from reproduce.recorded import RESULTS, recorded

MAX_ERROR = 8.0
MAX_TIME = 1.03
"""Time of an iteration, in terms of that with the true table, that is wanted of a wrong one."""
SETTINGS = {
    "wrong table": "table wrong by 0.5 to 2 per stage and pass",
    "slow rank": "a rank slowed to two thirds of its core",
}


def figure(results: Path = RESULTS / "online_costs.json") -> Figure:
    """Times of iterations with and without corrected costs.

    Args:
        results: The JSON file that `benchmarks/online_costs.py` writes.
    """
    found = recorded(results, "benchmarks/online_costs.py")
    rows: list[Row] = [
        {
            "setting": SETTINGS[setting],
            "method": method,
            "ratio": of["ratio"],
            "least": of["least"],
            "most": of["most"],
            "error": of["error"],
        }
        for setting, methods in found.results.items()
        for method, of in methods.items()
    ]
    return Figure(
        "online",
        "What does it gain to correct costs by what a run measures?",
        "Measured: the last 20 of 40 and 55 iterations of a small GPT on two ranks with a core "
        f"each, two seeds and their range, {found.where}.",
        "With a wrong table predictions become as good as with the true one, and plans no worse; a "
        "rank that becomes slow gets less work.",
        rows,
        partial(draw_settings, rows, y="ratio", y_label="time of an iteration, relative"),
        [*_claims(rows)],
    )


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    of = {str(row["method"]): row for row in rows}
    wrong, slow = of["wrong table, online"], of["slow rank, online"]
    ratio = (
        f"{float(wrong['ratio']):.3f} ({float(wrong['least']):.3f} to {float(wrong['most']):.3f})"
    )
    yield Claim(
        "Online (ours)",
        "a table wrong by 0.5 to 2 per stage and pass, corrected by the run: predictions within "
        f"{MAX_ERROR:g} % after 20 iterations, and iterations within 3 % of the true table's",
        "-",
        f"error {float(wrong['error']):.1f} %, time {ratio}",
        float(wrong["error"]) < MAX_ERROR and float(wrong["ratio"]) <= MAX_TIME,
        f"uncorrected {float(of['wrong table']['error']):.1f} %, and the true table "
        f"{float(of['true table']['error']):.1f} %",
    )
    yield Claim(
        "Online (ours)",
        "a rank that becomes slow in mid-run is planned around",
        "-",
        f"time {float(slow['ratio']):.3f} ({float(slow['least']):.3f} to "
        f"{float(slow['most']):.3f}) of the uncorrected run's",
        float(slow["most"]) < 1,
    )
