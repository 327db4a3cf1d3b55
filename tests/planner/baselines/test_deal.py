import pytest

from dynapipe_hpc.planner.baselines.deal import deal
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError


def test_groups_are_dealt_in_turns() -> None:
    assert deal([[0], [1, 2], [3], [4]], 2, donors=[]) == [[[0], [3]], [[1, 2], [4]]]


def test_last_items_of_donors_become_groups_until_all_replicas_have_as_many() -> None:
    dealt = deal([[0, 1, 2], [3, 4], [5]], 5, donors=[1, 0])
    assert dealt == [[[0, 1]], [[3]], [[5]], [[4]], [[2]]]
    assert deal([[0, 1, 2]], 2, donors=[0]) == [[[0, 1]], [[2]]]


def test_no_donor_gives_its_last_item() -> None:
    assert deal([[0], [1], [2]], 2, donors=[0, 1, 2]) == [[[0], [2]], [[1]]]
    with pytest.raises(TooFewMicroBatchesError, match="1 micro-batches for 2 replicas"):
        deal([[0]], 2, donors=[0])


def test_what_is_dealt_stays_as_it_was() -> None:
    groups = [[0, 1]]
    deal(groups, 2, donors=[0])
    assert groups == [[0, 1]]
