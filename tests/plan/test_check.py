"""Rules of plans, of all ranks and of one in the middle of a pipeline, broken one by one."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.examples.example_plans import Groups, microbatches_of, plans_of_grid

from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PackedRow, PaddedRows, Slice
from dynapipe_hpc.plan.check import PlanError, check_plans
from dynapipe_hpc.plan.rank_plan import RankPlan

RIGHT = """
rank 0 | L0 F0 a0>1 L1 F1 a1>1 g0<1@0 g0<! a0>! B0 g1<1@0 g1<! a1>! B1 reduce step
rank 1 | a0<0@0 L0 a0<! F0 a1<0@1 B0 g0>0 L1 a1<! F1 B1 g1>0 g0>! g1>! reduce step
"""


@pytest.fixture
def pipeline() -> list[RankPlan]:
    return plans_of_grid(RIGHT, n_microbatches=2)


@pytest.fixture
def second_pipeline() -> list[RankPlan]:
    """The same on ranks 2 and 3, with samples of its own."""
    peers = {">0": ">2", "<0": "<2", ">1": ">3", "<1": "<3"}
    grid = re.sub("[<>][01]", lambda found: peers[found[0]], RIGHT)
    microbatches = (PaddedRows((7,), 8), DenseRows(((8, 9),), 16))
    return [
        replace(plan, rank=2 + plan.stage, replica=1, microbatches=microbatches)
        for plan in plans_of_grid(grid, n_microbatches=2)
    ]


@pytest.mark.parametrize(
    "rows", [PaddedRows((7, 7), 8), DenseRows(((7,), (8, 7)), 16), PaddedRows((9, 8), 8)]
)
def test_a_sample_that_occurs_twice_is_refused(
    second_pipeline: list[RankPlan], rows: MicroBatch
) -> None:
    microbatches = (second_pipeline[0].microbatches[1], rows)
    broken = [replace(plan, microbatches=microbatches) for plan in second_pipeline]
    with pytest.raises(PlanError, match=r"sample [789] occurs twice, on replicas 1 and 1"):
        check_plans(broken)


def test_replicas_share_no_sample(
    pipeline: list[RankPlan], second_pipeline: list[RankPlan]
) -> None:
    check_plans(pipeline + second_pipeline)
    shared = (PaddedRows((1,), 8), PaddedRows((2,), 8))
    with pytest.raises(PlanError, match="sample 1 occurs twice, on replicas 0 and 1"):
        check_plans(pipeline + [replace(plan, microbatches=shared) for plan in second_pipeline])


FORWARD = """
rank 2 | L0 F0 a0>3 L1 F1 a1>3 a0>! a1>!
rank 3 | a0<2@0 L0 a0<! F0 a1<2@0 L1 a1<! F1
"""


def test_plans_without_backward_passes_are_an_evaluation(pipeline: list[RankPlan]) -> None:
    evaluation = [
        replace(plan, rank=2 + plan.stage, replica=1) for plan in plans_of_grid(FORWARD, 2)
    ]
    check_plans(evaluation)
    with pytest.raises(PlanError, match="replica 0 has backward passes, but replica 1 has only"):
        check_plans([*pipeline, *evaluation])
    early = FORWARD.replace("a1<2@0 L1", "L1").replace("L0 a0<!", "a1<2@0 L0 a0<!")
    with pytest.raises(PlanError, match="slot 0 is in use until F0"):
        check_plans([replace(plan, replica=0) for plan in plans_of_grid(early, 2)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iteration": 3}, r"belong to different iterations: \[0, 3\]"),
        ({"rank": 0}, r"a rank has two plans: \[0, 0\]"),
        ({"stage": 2}, r"replica 0 has plans for stages \[0, 2\]"),
    ],
)
def test_plans_of_an_iteration_are_one_of_each_stage(
    pipeline: list[RankPlan], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        check_plans([pipeline[0], replace(pipeline[1], **changes)])


def test_replicas_have_equally_many_stages(pipeline: list[RankPlan]) -> None:
    lone = plans_of_grid("rank 2 | L0 F0 B0 reduce step", n_microbatches=1)[0]
    with pytest.raises(PlanError, match=r"the replicas differ in stages: \[2, 1\]"):
        check_plans([*pipeline, replace(lone, rank=2, replica=1)])


@pytest.mark.parametrize(
    "changes", [{"microbatches": (PaddedRows((5,), 8),) * 2}, {"n_stream_shards": 2}]
)
def test_the_stages_of_a_replica_hand_over_the_same_tensors(
    pipeline: list[RankPlan], changes: dict[str, Any]
) -> None:
    other = replace(pipeline[1], **changes)
    with pytest.raises(PlanError, match="ranks 0 and 1 hold stages of replica 0 but differ in"):
        check_plans([pipeline[0], other])


ONE_STAGE = "rank 0 | L0 L1 L2 {} reduce step"
GROUP: Groups = [(0, 1, 2)]


def plans(passes: str, groups: Groups = GROUP) -> list[RankPlan]:
    drawn = plans_of_grid(ONE_STAGE.format(passes), 3)
    return [replace(plan, microbatches=microbatches_of(3, groups)) for plan in drawn]


@pytest.mark.parametrize("passes", ["F0 F1 F2 B2 B1 B0", "F0 F1 F2 I2 I1 W2 I0 W0 W1"])
def test_slices_run_forward_in_ascending_and_backward_in_descending_order(passes: str) -> None:
    check_plans(plans(passes))


@pytest.mark.parametrize(
    ("passes", "groups", "missing"),
    [
        ("F0 F2 F1 B2 B1 B0", GROUP, "F1"),
        ("F1 F0 F2 B2 B1 B0", GROUP, "F0"),
        ("F0 F1 F2 B2 B0 B1", GROUP, "B1"),
        ("F0 F1 B1 F2 B2 B0", GROUP, "B2"),
        ("F0 F1 F2 I2 W2 I0 I1 W1 W0", GROUP, "I1"),
        ("F0 F1 F2 B2 B1 B0", [(2, 0)], "F2"),
        ("F2 F0 F1 B2 B1 B0", [(2, 0)], "B0"),
    ],
)
def test_other_orders_are_refused(passes: str, groups: Groups, missing: str) -> None:
    with pytest.raises(PlanError, match=f"this needs {missing} before"):
        check_plans(plans(passes, groups))


def part(begin: int, end: int, n_tokens: int, sample_id: int = 7) -> PackedRow:
    length = end - begin
    return PackedRow((sample_id,), length, (0, length), slice=Slice(begin, end, n_tokens))


@pytest.mark.parametrize(
    ("microbatches", "shown"),
    [
        ([part(0, 8, 24), part(8, 16, 24)], "24 tokens, each once: 0 to 8, 8 to 16"),
        ([part(8, 16, 16)], "16 tokens, each once: 8 to 16"),
        ([part(0, 8, 24), part(16, 24, 24)], "24 tokens, each once: 0 to 8, 16 to 24"),
        ([part(0, 8, 16), part(0, 8, 16), part(8, 16, 16)], "0 to 8, 0 to 8, 8 to 16"),
        ([part(0, 8, 16), part(4, 16, 16)], "0 to 8, 4 to 16"),
        ([part(0, 8, 16), part(8, 16, 20)], "0 to 8, 8 to 16"),
    ],
)
def test_slices_that_are_not_the_whole_sample_are_refused(
    microbatches: Sequence[MicroBatch], shown: str
) -> None:
    n = len(microbatches)
    order = [*(f"L{i} F{i}" for i in range(n)), *(f"B{i}" for i in reversed(range(n)))]
    (plan,) = plans_of_grid(f"rank 0 | {' '.join(order)} reduce step", n)
    broken = replace(plan, microbatches=tuple(microbatches))
    with pytest.raises(PlanError, match=f"slices of sample 7 on replica 0 .*{re.escape(shown)}$"):
        check_plans([broken])


def test_every_sample_has_slices_of_its_own() -> None:
    microbatches = (part(0, 8, 16, 3), part(0, 8, 12, 4), part(8, 16, 16, 3), part(8, 12, 12, 4))
    (plan,) = plans_of_grid("rank 0 | L0 F0 L1 F1 L3 F3 B3 L2 F2 B2 B0 B1 reduce step", 4)
    check_plans([replace(plan, microbatches=microbatches)])


@pytest.mark.parametrize(
    "microbatches",
    [
        (part(0, 8, 16, 3), part(8, 16, 16, 3), PaddedRows((3,), 16)),
        (part(0, 8, 16, 3), PackedRow((3, 4), 16, (0, 8, 16), slice=Slice(8, 16, 16)),
         PaddedRows((4,), 16)),
        (part(0, 8, 16, 3), PackedRow((3, 3), 16, (0, 8, 16), slice=Slice(8, 16, 16)),
         PaddedRows((4,), 16)),
    ],
)  # fmt: skip
def test_a_sample_is_there_once_whole_or_in_slices(microbatches: tuple[MicroBatch, ...]) -> None:
    broken = replace(plans("F0 F1 F2 B2 B1 B0")[0], microbatches=microbatches)
    with pytest.raises(PlanError, match=r"sample \d occurs twice, on replicas 0 and 0"):
        check_plans([broken])


MIDDLE = (
    "rank 0 | a0<4@0 a1<4@1 L0 a0<! F0 a0>6 L1 a1<! F1 a1>6 g0<6@2 g0<! a0>! B0 g0>4"
    " g1<6@0 g1<! a1>! B1 g1>4 g0>! g1>! reduce step"
)
SPLIT = (
    "rank 0 | a0<4@0 a1<4@1 L0 a0<! F0 a0>6 L1 a1<! F1 a1>6 g0<6@2 g0<! a0>! I0 g0>4"
    " W0 g1<6@0 g1<! a1>! I1 g1>4 g0>! W1 g1>! reduce step"
)
BEFORE = "rank 4 | L0 F0 a0>0 L1 F1 a1>0 g0<0@0 g1<0@1 g0<! a0>! B0 g1<! a1>! B1 reduce step"
BEHIND = "rank 6 | a0<0@0 a1<0@1 L0 a0<! F0 B0 g0>0 L1 a1<! F1 B1 g1>0 g0>! g1>! reduce step"


def with_neighbours(middle: str) -> list[RankPlan]:
    return plans_of_grid("\n".join([BEFORE, middle, BEHIND]), n_microbatches=2)


def check(middle: str, limit: int = 1000) -> None:
    first, plan, last = with_neighbours(middle)
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
    grid = SPLIT if "W" in old or "I" in old else MIDDLE
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
