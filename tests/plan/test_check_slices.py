"""Plans in which the slices of a sample are micro-batches."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.examples.example_plans import Groups, microbatches_of, plans_of_grid

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, PaddedRows, Slice
from dynapipe_hpc.plan.check import PlanError, check_plans
from dynapipe_hpc.plan.rank_plan import RankPlan

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
