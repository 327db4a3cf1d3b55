import pytest
from tests.examples.plan_tables import spans_of

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
