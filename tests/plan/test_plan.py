"""Parts of a plan: memory, times, ranks and text."""

from dataclasses import replace

import pytest
from tests.examples.example_plans import plans_of, plans_of_grid, spans_of

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import MemoryPlan, grid, peak_bytes, stored_peak_bytes, symbol


@pytest.mark.parametrize(
    ("passes", "stored", "transient"),
    [
        ("", 0, 0),
        ("F0 B0 F1 B1", 20, 5),
        ("F0 F1 B1 B0", 10 + 20, 5),
        ("F1 F0 B0 B1", 20 + 10, 7),
        ("F0 F1 B0 B1", 10 + 20, 7),
    ],
)
def test_stored_bytes_stay_until_backward_and_transient_bytes_come_on_top(
    passes: str, stored: int, transient: int
) -> None:
    plan = plans_of_grid(f"rank 0 | {passes}", n_microbatches=2)[0]
    memory = MemoryPlan(
        limit=0, static=1000, stored=(10, 20), forward_transient=(1, 2), backward_transient=(7, 5)
    )
    plan = replace(plan, memory=memory)
    assert (peak_bytes(plan), stored_peak_bytes(plan)) == (1000 + stored + transient, stored)


PAIRS = [(0.0, 1.5), (1.5, 0.1 + 0.2), (7.0, 1e300)]


def test_times_are_equal_if_all_of_them_are() -> None:
    times, other = spans_of([(-0.0, 1.0)]), spans_of([(0.0, 1.0)])
    assert times == other
    assert hash(times) == hash(other)
    assert spans_of([(0.0, 1.0)]) != spans_of([(0.0, 2.0)])
    assert spans_of([(0.0, 1.0)]) != [(0.0, 1.0)]


def test_times_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        spans_of(PAIRS).table[0, 0] = 1.0


def test_a_cluster_that_plans_cannot_number_is_refused() -> None:
    with pytest.raises(
        ValueError, match="n_replicas x n_stages is 65540, but plans can number only"
    ):
        Cluster(n_replicas=65540, device_memory_bytes=1)


A, G = Payload.ACTIVATION, Payload.GRADIENT


def test_every_instruction_has_a_symbol() -> None:
    row: list[Instruction] = [
        *(Load(3), StartReceive(3, A, 0, 2), WaitReceive(3, A), Forward(3), StartSend(3, A, 12)),
        *(StartReceive(3, G, 12, 0), WaitReceive(3, G), WaitSend(3, A), Backward(3)),
        *(StartSend(3, G, 0), WaitSend(3, G), ReduceGradients(), StepOptimizer()),
        *(BackwardInput(3), BackwardWeight(3)),
    ]
    symbols = "L3 a3<0@2 a3<! F3 a3>12 g3<12@0 g3<! a3>! B3 g3>0 g3>! reduce step I3 W3"
    assert " ".join(map(symbol, row)) == symbols


def test_a_grid_has_a_line_per_rank() -> None:
    plans = plans_of([[Load(0), Forward(0)], [StartReceive(0, A, 0, 0)], *[[]] * 8, [Load(0)]], 1)
    lines = grid(plans).splitlines()
    assert lines[:3] == ["rank  0 | L0 F0", "rank  1 | a0<0@0", "rank  2 |"]
    assert lines[10] == "rank 10 | L0"
