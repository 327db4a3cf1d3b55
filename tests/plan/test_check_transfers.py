"""Transfers that do not match or do not end."""

import pytest
from tests.oracles.example_plans import plans_of_grid

from dynapipe_hpc.plan.check_transfers import check_transfers
from dynapipe_hpc.plan.errors import PlanError


def check(grid: str) -> None:
    check_transfers(plans_of_grid(grid, n_microbatches=2))


def problem(grid: str) -> list[str]:
    with pytest.raises(PlanError) as raised:
        check(grid)
    return str(raised.value).splitlines()


def test_a_swapped_pair_is_shown_side_by_side() -> None:
    assert problem(
        """
        rank 0 | F0 a0>1 F1 a1>1 g0<1@0 a0>! g0<! B0 a1>!
        rank 1 | a0<0@0 a0<! F0 B0 g0>0 a1<0@1 g0>! a1<! F1
        """
    ) == [
        "iteration 0: ranks 0 and 1 disagree on transfer 1 between them:",
        "  rank 0 | a0>1 [a1>1] g0<1@0",
        "  rank 1 | a0<0@0 [g0>0] a1<0@1",
    ]


def test_a_send_does_not_match_a_send() -> None:
    assert problem("rank 0 | a0>1 a0>! \n rank 1 | a0>0 a0>!")[1:] == [
        "  rank 0 | [a0>1]",
        "  rank 1 | [a0>0]",
    ]


def test_ranks_that_wait_for_each_other_are_shown_side_by_side() -> None:
    ring = """
        rank 0 | a0>1 a0>! a2<2@0 a2<!
        rank 1 | a1>2 a1>! a0<0@0 a0<!
        rank 2 | a2>0 a2>! a1<1@0 a1<!
        """
    assert problem(ring) == [
        "iteration 0: transfers hang, these ranks wait for ever:",
        "  rank 0 | a0>1 [a0>!] a2<2@0 a2<!",
        "  rank 1 | a1>2 [a1>!] a0<0@0 a0<!",
        "  rank 2 | a2>0 [a2>!] a1<1@0 a1<!",
    ]
    check(ring.replace("a0>! a2<2@0", "a2<2@0 a0>!"))


def test_an_operation_without_a_partner_never_ends() -> None:
    assert problem("rank 0 | a0>1 a1>1 a0>! a1>! F0 \n rank 1 | a0<0@0 a0<!") == [
        "iteration 0: transfers hang, these ranks wait for ever:",
        "  rank 0 | a0>1 a1>1 a0>! [a1>!] F0",
    ]


def test_a_long_plan_is_cut_around_the_place() -> None:
    padding = " ".join(["F0"] * 9)
    assert problem(f"rank 0 | {padding} a0>1 a0>! {padding} \n rank 1 | {padding}")[1:] == [
        "  rank 0 | ... F0 F0 F0 F0 F0 a0>1 [a0>!] F0 F0 F0 F0 F0 F0 ...",
    ]
