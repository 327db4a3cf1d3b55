"""The picture of a plan and the way back."""

from hypothesis import given
from hypothesis import strategies as st
from tests.examples.example_plans import plans_of
from tests.examples.plan_text import parse_grid

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
from dynapipe_hpc.plan.text import grid, symbol

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


def instructions() -> st.SearchStrategy[Instruction]:
    numbers, payloads = st.integers(0, 10**9 - 1), st.sampled_from(Payload)
    return st.one_of(
        st.builds(Load, numbers),
        st.builds(Forward, numbers),
        st.builds(Backward, numbers),
        st.builds(BackwardInput, numbers),
        st.builds(BackwardWeight, numbers),
        st.builds(StartSend, numbers, payloads, numbers),
        st.builds(WaitSend, numbers, payloads),
        st.builds(StartReceive, numbers, payloads, numbers, numbers),
        st.builds(WaitReceive, numbers, payloads),
        st.builds(ReduceGradients),
        st.builds(StepOptimizer),
    )


@given(st.lists(st.lists(instructions(), max_size=20), max_size=12))
def test_a_grid_parses_back(rows: list[list[Instruction]]) -> None:
    expected = {rank: tuple(row) for rank, row in enumerate(rows)}
    assert parse_grid(grid(plans_of(rows, 1))) == expected
