"""Places of bars in a chart."""

from dataclasses import replace

import pytest
from tests.examples.example_runs import example_plans, example_traces

from dynapipe_hpc.report.gantt import LEFT, MAX_RANKS, RIGHT, WIDTH, gantt
from dynapipe_hpc.report.timeline import timeline_of

EXAMPLE = timeline_of(example_plans(), example_traces())


def test_the_given_time_fills_the_width() -> None:
    boxes = gantt(EXAMPLE, 72.0).boxes
    assert max(box.x + box.width for box in boxes) == pytest.approx(WIDTH - RIGHT)
    assert min(box.x for box in boxes) == LEFT
    half = gantt(replace(EXAMPLE, planned_ms=144.0), 144.0)
    assert half.planned_end == pytest.approx(WIDTH - RIGHT)
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    assert max(box.x + box.width for box in half.boxes) == pytest.approx(middle)


def test_passes_and_updates_are_drawn_in_four_lanes() -> None:
    boxes = gantt(EXAMPLE, 72.0).boxes
    planned, measured = ["forward", "backward"], ["forward", "backward", "update", "update"]
    lanes = sorted({box.y for box in boxes})
    kinds = [[box.kind for box in boxes if box.y == lane] for lane in lanes]
    assert kinds == [planned, measured, planned, measured]


def test_a_bar_tells_its_story() -> None:
    assert gantt(EXAMPLE, 72.0).boxes[0].tip == (
        "forward of micro-batch 0 (3 x 16 tokens): 0.0 to 10.0 ms"
    )


def test_time_is_marked_at_round_numbers() -> None:
    assert [label for _, label in gantt(EXAMPLE, 72.0).ticks] == [
        "0", "10", "20", "30", "40", "50", "60", "70",
    ]  # fmt: skip


def test_ranks_beyond_the_drawing_are_counted() -> None:
    first = EXAMPLE.planned[0]
    many = replace(EXAMPLE, planned=tuple(replace(first, rank=rank) for rank in range(20)))
    drawing = gantt(many, 72.0)
    assert drawing.n_hidden_ranks == 20 - MAX_RANKS
    assert len(drawing.lanes) == 2 * MAX_RANKS
