import pytest

from dynapipe_hpc.plan.pass_spans import PassSpans

PAIRS = [(0.0, 1.5), (1.5, 0.1 + 0.2), (7.0, 1e300)]


def test_times_are_equal_if_all_of_them_are() -> None:
    times, other = PassSpans.from_times([(-0.0, 1.0)]), PassSpans.from_times([(0.0, 1.0)])
    assert times == other
    assert hash(times) == hash(other)
    assert PassSpans.from_times([(0.0, 1.0)]) != PassSpans.from_times([(0.0, 2.0)])
    assert PassSpans.from_times([(0.0, 1.0)]) != [(0.0, 1.0)]


def test_times_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        PassSpans.from_times(PAIRS).table[0, 0] = 1.0
