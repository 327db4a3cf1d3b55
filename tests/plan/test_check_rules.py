"""The rules of plans, broken one by one in the middle of a pipeline."""

from dataclasses import replace

import pytest
from tests.examples.example_plans import plans_of_grid

from dynapipe_hpc.plan.check import PlanError, check_plans
from dynapipe_hpc.plan.rank_plan import RankPlan

RIGHT = (
    "rank 0 | a0<4@0 a1<4@1 L0 a0<! F0 a0>6 L1 a1<! F1 a1>6 g0<6@2 g0<! a0>! B0 g0>4"
    " g1<6@0 g1<! a1>! B1 g1>4 g0>! g1>! reduce step"
)
SPLIT = (
    "rank 0 | a0<4@0 a1<4@1 L0 a0<! F0 a0>6 L1 a1<! F1 a1>6 g0<6@2 g0<! a0>! I0 g0>4"
    " W0 g1<6@0 g1<! a1>! I1 g1>4 g0>! W1 g1>! reduce step"
)
BEFORE = "rank 4 | L0 F0 a0>0 L1 F1 a1>0 g0<0@0 g1<0@1 g0<! a0>! B0 g1<! a1>! B1 reduce step"
BEHIND = "rank 6 | a0<0@0 a1<0@1 L0 a0<! F0 B0 g0>0 L1 a1<! F1 B1 g1>0 g0>! g1>! reduce step"


def pipeline(middle: str) -> list[RankPlan]:
    return plans_of_grid("\n".join([BEFORE, middle, BEHIND]), n_microbatches=2)


def check(middle: str, limit: int = 1000) -> None:
    first, plan, last = pipeline(middle)
    check_plans([first, replace(plan, memory=replace(plan.memory, limit=limit)), last])


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
        ("B1", "reduce B1", "this is not allowed here", "[reduce] B1"),
        ("reduce step", "step reduce", "a plan must end with reduce and step, in this order", ""),
        (
            "reduce step",
            "reduce",
            "a plan must end with reduce and step, in this order",
            "reduce []",
        ),
        ("g0<6@2", "g0<6@0", "slot 0 is in use until B0", "[g0<6@0]"),
        ("a0>! B0 g0>4 g1<6@0", "a0>! g1<6@0 B0 g0>4", "slot 0 is in use until B0", ""),
        ("B0", "I0", "a plan must split all backward passes of its rank or none", "[B1]"),
        # Of a rank whose backward passes are split.
        ("W1 ", "", "this needs W1 before", "[reduce] step"),
        ("I0 g0>4 W0", "W0 I0 g0>4", "this needs I0 before", "a0>! [W0] I0"),
        ("I1 g1>4", "g1>4 I1", "this needs I1 before", "a1>! [g1>4] I1"),
        ("W1", "W1 W1", "this comes a second time", "W1 [W1]"),
        ("W0", "B0", "a plan must split all backward passes of its rank or none", "[B0]"),
        ("W0 g1<6@0", "g1<6@0 W0", "slot 0 is in use until W0", "[g1<6@0] W0"),
    ],
)
def test_a_broken_rule_is_named_and_shown(old: str, new: str, problem: str, shown: str) -> None:
    grid = SPLIT if "W" in old or "I" in old else RIGHT
    assert_refused(grid, old, new, problem, shown)


def assert_refused(right: str, old: str, new: str, problem: str, shown: str) -> None:
    assert old in right
    with pytest.raises(PlanError, match=f"^iteration 0: rank 0: {problem}:\n") as raised:
        check(right.replace(old, new, 1))
    assert shown in str(raised.value)


def test_what_forward_kept_is_freed_by_the_pass_for_the_weights_alone() -> None:
    late = SPLIT.replace("W0 ", "", 1).replace("g1<6@0", "g1<6@3").replace("W1", "W1 W0")
    check(late, limit=100 + 10 + 11 + 1)
    first = "rank 0 | L0 F0 B0 L1 F1 B1 reduce step"
    check_alone(first, limit=100 + 11 + 1)
    check_alone(first.replace("B0", "I0 W0").replace("B1", "I1 W1"), limit=100 + 11 + 1)
    with pytest.raises(PlanError, match="needs 122 bytes"):
        check_alone("rank 0 | L0 F0 I0 L1 F1 I1 W0 W1 reduce step", limit=100 + 11 + 1)


def check_alone(grid: str, limit: int) -> None:
    (plan,) = plans_of_grid(grid, n_microbatches=2)
    check_plans([replace(plan, memory=replace(plan.memory, limit=limit))])
