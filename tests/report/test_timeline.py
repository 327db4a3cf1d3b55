"""Plans and traces joined: every pass planned, every instruction measured."""

import pytest
from tests.examples.example_runs import example_plans, example_traces

from dynapipe_hpc.report.timeline import Kind, timeline_of


def test_planned_bars_are_the_passes_at_their_predicted_times() -> None:
    planned = timeline_of(example_plans(), example_traces()).planned
    assert [(b.rank, b.label, b.start_ms, b.end_ms) for b in planned] == [
        (0, "F0", 0, 10),
        (0, "B0", 41, 60),
        (1, "F0", 11, 21),
        (1, "B0", 21, 40),
    ]


def test_measured_bars_are_the_instructions_in_the_order_of_the_plan() -> None:
    measured = timeline_of(example_plans(), example_traces()).measured
    assert [b.label for b in measured if b.rank == 1] == [
        "a0<0@0", "L0", "a0<!", "F0", "B0", "g0>0", "g0>!", "reduce", "step",
    ]  # fmt: skip
    assert [b.kind for b in measured if b.rank == 1] == [
        Kind.TRANSFER, Kind.LOAD, Kind.WAIT, Kind.FORWARD, Kind.BACKWARD,
        Kind.TRANSFER, Kind.WAIT, Kind.UPDATE, Kind.UPDATE,
    ]  # fmt: skip


def test_bars_know_the_shape_of_their_micro_batch() -> None:
    bars = timeline_of(example_plans(), example_traces()).measured
    assert {b.shape for b in bars if b.kind is Kind.FORWARD} == {(3, 16)}
    assert {b.shape for b in bars if b.kind is Kind.UPDATE} == {None}


def test_the_iteration_ends_with_its_last_instruction() -> None:
    timeline = timeline_of(example_plans(7), example_traces(7))
    assert (timeline.iteration, timeline.planned_ms, timeline.measured_ms) == (7, 65, 72)
    assert timeline.ranks == [0, 1]


def test_ranks_without_a_trace_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        timeline_of(example_plans(), example_traces()[:1])
