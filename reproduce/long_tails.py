"""Plans of batches with very long samples: whole, in slices, and by the rules of today."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.recorded import RESULTS, recorded

CASE = re.compile(
    r"a100_80gb, with: (?P<longest>[\d,]+); (?P<tokens>[\d,]+); (?P<stages>\d+)",
)
METHODS = {
    "balanced": "balanced packed rows",
    "budget": "token budget",
    "whole": "ours, whole samples",
    "slices": "ours, slices",
}
DRAWN_TOKENS = 262_144
MIN_GAINS = {(32768, 262144, 4): 1.15, (32768, 262144, 8): 1.5, (65536, 1048576, 8): 2.0}
"""Gains over whole samples that are wanted, by longest sample, tokens per batch and stages."""
MAX_OVER_WORK = {32768: 1.08, 65536: 1.15}
"""Time over work that is wanted of slices, by longest sample."""


def figure(results: Path = RESULTS / "long_tails.json") -> Figure:
    """Times over the work, over the longest sample.

    Args:
        results: The JSON file that `benchmarks/long_tails.py` writes.
    """
    found = recorded(results, "benchmarks/long_tails.py")
    rows: list[Row] = [
        {
            "method": METHODS[method],
            "longest": _number(case["longest"]),
            "tokens": _number(case["tokens"]),
            "stages": int(case["stages"]),
            "over_work": of["over work"] if method == "slices" else of[method],
        }
        for name, of in found.results.items()
        if (case := CASE.fullmatch(name))
        for method in METHODS
    ]
    return Figure(
        "long_tails",
        "What do slices gain where samples are very long?",
        "Predicted: a Llama 3 8B by estimates from an A100's rates with fused attention, batches "
        "that contain a sample of three quarters of the maximum, one replica, packed rows, split "
        "backward passes, geometric means of six batches over the work of the busiest stage; the "
        f"rules of today have the best size for every batch; computed {found.where}.",
        "Whole samples cost more the longer the longest one is and the more stages it crosses; "
        "plans with slices stay near the work.",
        rows,
        partial(_draw, [row for row in rows if row["tokens"] == DRAWN_TOKENS]),
        [*_claims(rows)],
    )


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _draw(rows: Sequence[Row], path: Path) -> None:
    panels = {
        f"{n} stages": [row for row in rows if row["stages"] == n]
        for n in dict.fromkeys(row["stages"] for row in rows)
    }
    draw_lines(path, panels, "longest", "over_work", "longest sample in tokens", "time over work")


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    of_methods = {
        method: {_size(row): float(row["over_work"]) for row in rows if row["method"] == name}
        for method, name in METHODS.items()
    }
    slices = of_methods["slices"]
    gains = {size: of_methods["whole"][size] / slices[size] for size in MIN_GAINS}
    told = [
        f"{_text(size)}: {gain:.2f}x, {MIN_GAINS[size]:g}x wanted" for size, gain in gains.items()
    ]
    yield Claim(
        "Long samples (ours)",
        "slices make plans of batches with very long samples faster than whole samples",
        "-",
        "; ".join(told),
        all(gain >= MIN_GAINS[size] for size, gain in gains.items()),
        "no plan can be faster than its work: of 1,048,576 tokens whole samples take "
        f"{of_methods['whole'][65536, 1048576, 8]:.2f} times that",
    )
    over = {n: max(v for size, v in slices.items() if size[0] == n) for n in MAX_OVER_WORK}
    yield Claim(
        "Long samples (ours)",
        "plans with slices take little longer than their work",
        "-",
        "; ".join(f"samples to {n:,}: at most {v:.3f}" for n, v in over.items()),
        all(v <= MAX_OVER_WORK[n] for n, v in over.items()),
    )
    rules = {
        size: min(of_methods["balanced"][size], of_methods["budget"][size]) / v
        for size, v in slices.items()
    }
    yield Claim(
        "Long samples (ours)",
        "plans with slices are faster than the rules of today at every length",
        "-",
        f"{min(rules.values()):.2f}x to {max(rules.values()):.2f}x",
        min(rules.values()) > 1,
    )


def _size(row: Row) -> tuple[int, int, int]:
    return int(row["longest"]), int(row["tokens"]), int(row["stages"])


def _text(size: tuple[int, int, int]) -> str:
    longest, tokens, stages = size
    return f"samples to {longest:,}, {tokens:,} tokens, {stages} stages"
