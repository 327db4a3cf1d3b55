import pytest

from dynapipe_hpc.plan.pass_spans import PassSpans

PAIRS = [(0.0, 1.5), (1.5, 0.1 + 0.2), (7.0, 1e300)]


def test_times_are_the_pairs_that_they_were_made_of() -> None:
    times = PassSpans.from_times(iter(PAIRS))
    assert list(times) == PAIRS
    assert len(times) == 3


def test_bytes_are_those_of_little_endian_numbers() -> None:
    packed = PassSpans.from_times([(1.0, -2.0)]).pack()
    assert packed == bytes([0] * 6 + [0xF0, 0x3F] + [0] * 7 + [0xC0])
    assert PassSpans.unpack(memoryview(packed)) == PassSpans.from_times([(1.0, -2.0)])


def test_no_pass_is_a_table_without_rows() -> None:
    assert list(PassSpans.from_times([])) == []
    assert PassSpans.unpack(memoryview(b"")) == PassSpans.from_times([])


def test_times_are_equal_if_all_of_them_are() -> None:
    times, other = PassSpans.from_times([(-0.0, 1.0)]), PassSpans.from_times([(0.0, 1.0)])
    assert times == other
    assert hash(times) == hash(other)
    assert PassSpans.from_times([(0.0, 1.0)]) != PassSpans.from_times([(0.0, 2.0)])
    assert PassSpans.from_times([(0.0, 1.0)]) != [(0.0, 1.0)]


def test_times_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        PassSpans.from_times(PAIRS).table[0, 0] = 1.0
