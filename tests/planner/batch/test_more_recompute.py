from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.planner.choose.best_of_rules import more_recompute

NONE, FULL = Recompute.NONE, Recompute.FULL
SHORT, LONG = PaddedRows((0, 1), 8, NONE), PaddedRows((2,), 64, FULL)


def test_each_mode_is_the_least_that_micro_batches_have() -> None:
    found = list(more_recompute([SHORT, LONG], LinearCost(recomputes=True)))
    assert [[m.recompute for m in microbatches] for microbatches in found] == [
        [NONE, FULL],
        [FULL, FULL],
    ]
    assert all([m.rows for m in microbatches] == [SHORT.rows, LONG.rows] for microbatches in found)


def test_what_the_cost_model_does_not_know_is_left_out() -> None:
    assert list(more_recompute([LONG], LinearCost(recomputes=True, longest_row=32))) == []
