"""Time of a layer per token, over the length of its row."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.studies import MODELS, TABLES

KINDS = {"forward_ms": "forward pass", "backward_ms": "backward pass"}
BOTH = "both passes"
DRAWN = (256, 512, 1024, 2048, 4096, 8192)
MEASURED_ROWS = {
    "tensor_parallel": "1",
    "recompute": "none",
    "layer": "encoder",
    "microbatch_size": "1",
}


def figure(inputs: Path) -> Figure:
    """One row on one GPU, without recomputation, in the layers of the authors' tables.

    Args:
        inputs: Folder with profiles/, see benchmarks/a100_inputs.py.
    """
    rows = [row for family, name in TABLES.items() for row in _rows(family, inputs, name)]
    return Figure(
        "layer_time",
        "How does the time of a layer grow with the length of its row?",
        "Measured, by the paper's authors on one A100-40GB: one layer (of a T5, of its encoder), "
        "one row, no recomputation, attention that is not fused.",
        "Short rows leave the GPU idle, and cost as much as longer ones. In long ones, attention "
        "makes every token dearer: rows of many samples that are packed without masks pay for it.",
        rows,
        partial(_draw, rows),
        [_claim(family, rows) for family in MODELS],
    )


def _rows(family: str, inputs: Path, name: str) -> Iterator[Row]:
    with (inputs / "profiles" / name).open(newline="") as file:
        measured = [row for row in csv.DictReader(file) if MEASURED_ROWS.items() <= row.items()]
    for row in measured:
        times = {kind: float(row[column]) for column, kind in KINDS.items()}
        for kind, ms in {**times, BOTH: sum(times.values())}.items():
            tokens = int(row["input_tokens"])
            yield {
                "model": MODELS[family],
                "tokens": tokens,
                "method": kind,
                "layer_ms": ms,
                "us_per_token": 1000 * ms / tokens,
            }


def _draw(rows: Sequence[Row], path: Path) -> None:
    # Below, most time is idle; ticks of other lengths would overlap.
    drawn = [row for row in rows if int(row["tokens"]) in DRAWN]
    panels = {model: [row for row in drawn if row["model"] == model] for model in MODELS.values()}
    draw_lines(path, panels, "tokens", "us_per_token", "tokens of the row", "us per token")


def _claim(family: str, rows: Sequence[Row]) -> Claim:
    per_token: Mapping[int, float] = {
        int(row["tokens"]): float(row["us_per_token"])
        for row in rows
        if row["model"] == MODELS[family] and row["method"] == BOTH
    }
    best = min(per_token, key=lambda tokens: per_token[tokens])
    longest = max(per_token)
    ratio = per_token[longest] / per_token[best]
    return Claim(
        "Figure 3",
        f"{MODELS[family]}: a token of a long row takes more time than one of a short row",
        "drawn only",
        f"{ratio:.1f}x at {longest:,} tokens, of what it takes at {best:,}",
        longest > best and ratio > 1,
    )
