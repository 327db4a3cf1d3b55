"""Planning time and quality of plans up to millions of tokens."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.recorded import RESULTS, recorded

MAX_S = 2.0
"""Seconds that are wanted for the largest batch without recomputation."""
CASE = re.compile(r"(?P<tokens>\d+) tokens, 64 x (?P<replicas>\d+), (?P<modes>\d) modes, .*")


def figure(results: Path = RESULTS / "large_batch.json") -> Figure:
    """Planning time over tokens of a global batch, on 64 stages.

    Args:
        results: The JSON file that `benchmarks/large_batch.py` writes.
    """
    found = recorded(results, "benchmarks/large_batch.py")
    rows = [
        {
            "method": "no recomputation" if case["modes"] == "1" else "all modes of recomputation",
            "replicas": int(case["replicas"]),
            "tokens": int(case["tokens"]),
            "microbatches": int(of["micro-batches"]),
            "planning_s": 1e-3 * of["whole"],
            "memory_mb": of["MB"],
            "gap": 100 * (of["predicted"] / of["bound"] - 1),
        }
        for name, of in found.results.items()
        if (case := CASE.fullmatch(name))
    ]
    return Figure(
        "large_batches",
        "How long does planning take up to 4 million tokens on 64 stages and 64 replicas?",
        "Measured: processor time of one thread for a GPT of 64 of the layers that the paper's "
        "authors measured on A100-40GB, samples of up to 2,048 tokens, 65,536 tokens per replica, "
        f"padded and packed rows, split backward passes, {found.where}.",
        "Time and memory in proportion to the tokens, plans as close to the bound as small ones.",
        rows,
        partial(_draw, rows),
        [*_claims(rows)],
    )


def _draw(rows: Sequence[Row], path: Path) -> None:
    labels = "tokens per global batch", "planning time in s"
    panels = {"planning": rows}
    draw_lines(path, panels, "tokens", "planning_s", *labels)


def _claims(rows: Sequence[Row]) -> Iterator[Claim]:
    most = max(int(row["tokens"]) for row in rows)
    largest = {row["method"]: row for row in rows if row["tokens"] == most}
    seconds = [f"{method}: {float(row['planning_s']):.2f} s" for method, row in largest.items()]
    yield Claim(
        "Large batches (ours)",
        f"{most:,} tokens on 64 stages and 64 replicas are planned within {MAX_S:g} s by a thread",
        "-",
        "; ".join(seconds),
        float(largest["no recomputation"]["planning_s"]) <= MAX_S,
        "iterations of such jobs take as long, and other cores plan the next ones",
    )
