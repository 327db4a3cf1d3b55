"""The rules of a single rank, broken one by one."""

from dataclasses import replace

import pytest
from tests.oracles.example_plans import plans_of_grid

from dynapipe_hpc.plan.check_rank import Neighbours, check_rank
from dynapipe_hpc.plan.errors import PlanError

RIGHT = (
    "rank 0 | a0<4@0 a1<4@1 L0 a0<! F0 a0>6 L1 a1<! F1 a1>6 g0<6@2 g0<! a0>! B0 g0>4"
    " g1<6@0 g1<! a1>! B1 g1>4 g0>! g1>! reduce step"
)


def check(grid: str, limit: int = 1000) -> None:
    plan = plans_of_grid(grid, n_microbatches=2)[0]
    memory = replace(plan.memory, limit=limit)
    check_rank(replace(plan, memory=memory), Neighbours(before=4, behind=6))


def test_a_right_plan_passes() -> None:
    check(RIGHT)


@pytest.mark.parametrize(
    ("old", "new", "problem", "shown"),
    [
        ("L0", "", "this needs L0 before", "a0<! [F0] a0>6"),
        ("L0", "L0 L0", "this comes a second time", "L0 [L0]"),
        ("L1", "L2", "there are only 2 micro-batches", ""),
        ("a0<! ", "", "this needs a0<! before", "[F0]"),
        ("a0<4@0", "", "this needs a0< before", "[a0<!]"),
        ("a0<4@0", "a0<6@0", "the peer must be rank 4", "[a0<6@0]"),
        ("g0>4", "g0>6", "the peer must be rank 4", "[g0>6]"),
        ("F0 a0>6", "a0>6 F0", "this needs F0 before", "[a0>6] F0"),
        ("a0>! B0", "B0", "this needs a0>! before", "[reduce] step"),
        ("g1>4 g0>! g1>!", "g0>!", "this needs g1> before", "[reduce] step"),
        ("g0<! a0>! B0 g0>4", "g0>4 g0<! a0>! B0", "this needs B0 before", "[g0>4]"),
        ("g1<! a1>! B1", "a1>! B1 g1<!", "this needs g1<! before", "[B1]"),
        ("B1", "reduce B1", "this has no place here", "[reduce] B1"),
        ("reduce step", "step reduce", "a plan ends with reduce and step, in this order", ""),
        ("reduce step", "reduce", "a plan ends with reduce and step, in this order", "reduce []"),
        ("g0<6@2", "g0<6@0", "slot 0 is in use until B0", "[g0<6@0]"),
        ("a0>! B0 g0>4 g1<6@0", "a0>! g1<6@0 B0 g0>4", "slot 0 is in use until B0", ""),
    ],
)
def test_a_broken_rule_is_named_and_shown(old: str, new: str, problem: str, shown: str) -> None:
    assert old in RIGHT
    with pytest.raises(PlanError, match=f"^iteration 0: rank 0: {problem}:\n") as raised:
        check(RIGHT.replace(old, new, 1))
    assert shown in str(raised.value)


def test_an_end_of_the_pipeline_has_no_transfers_beyond_it() -> None:
    plan = plans_of_grid(RIGHT, n_microbatches=2)[0]
    with pytest.raises(PlanError, match=r"this has no place here:\n  rank 0 \| \[a0<4@0\]"):
        check_rank(plan, Neighbours(before=None, behind=6))


def test_memory_is_enough_to_the_byte() -> None:
    check(RIGHT, limit=100 + 10 + 11 + 1)
    with pytest.raises(PlanError, match="rank 0 needs 122 bytes at its peak, but may use 121"):
        check(RIGHT, limit=100 + 10 + 11)


def test_the_memory_account_covers_every_micro_batch() -> None:
    plan = plans_of_grid(RIGHT, n_microbatches=2)[0]
    with pytest.raises(PlanError, match=r"memory of \[2, 1, 2\] micro-batches, but has 2"):
        memory = replace(plan.memory, forward_transient=(1,))
        check_rank(replace(plan, memory=memory), Neighbours(before=4, behind=6))
