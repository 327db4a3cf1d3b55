from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.store.ring_layout import HEADER, RingLayout


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 5))
def test_fields_are_aligned_and_do_not_overlap(
    n_entries: int, message_bytes: int, n_ranks: int
) -> None:
    layout = RingLayout(n_entries, message_bytes)
    fields = [
        field
        for rank in range(n_ranks)
        for field in [
            (layout.n_put(rank), 8),
            (layout.n_taken(rank), 8),
            *((layout.header(rank, i), HEADER.size) for i in range(n_entries)),
            *((layout.message(rank, i), message_bytes) for i in range(n_entries)),
        ]
    ]
    ends = [start + size for start, size in sorted(fields)]
    next_starts = [start for start, _ in sorted(fields)[1:]] + [n_ranks * layout.ring_bytes]
    assert all(start % 8 == 0 for start, _ in fields)
    assert all(end <= start for end, start in zip(ends, next_starts, strict=True))


def test_messages_share_entries_in_turn() -> None:
    layout = RingLayout(n_entries=3, message_bytes=100)
    assert layout.message(1, 7) == layout.message(1, 1) != layout.message(1, 2)
