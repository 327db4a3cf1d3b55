from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.store.ring_layout import HEADER, MessageKind, RingLayout


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 40))
def test_fields_are_aligned_and_do_not_overlap(
    n_ranks: int, n_entries: int, message_bytes: int
) -> None:
    layout = RingLayout(n_ranks, n_entries, message_bytes)
    fields = [
        *((offset, 8) for offset in layout.counts),
        *(
            (layout.header(number, rank), HEADER.size)
            for number in range(n_entries)
            for rank in range(n_ranks)
        ),
    ]
    for number in range(n_entries):
        body = layout.pack(
            [(MessageKind.PLAN, bytes([rank]) * message_bytes) for rank in range(n_ranks)]
        )
        end = layout.body(number) + len(body)
        fields.append((end - n_ranks * message_bytes // 8 * 8, n_ranks * message_bytes // 8 * 8))
        assert end == layout.n_put(number) + layout.entry_bytes
    ends = [start + size for start, size in sorted(fields)]
    next_starts = [start for start, _ in sorted(fields)[1:]] + [layout.ring_bytes]
    assert all(start % 8 == 0 for start, _ in fields)
    assert all(end <= start for end, start in zip(ends, next_starts, strict=True))


@given(
    st.lists(
        st.tuples(st.sampled_from(MessageKind), st.binary(max_size=20)), min_size=1, max_size=6
    )
)
def test_every_rank_finds_its_message(messages: list[tuple[MessageKind, bytes]]) -> None:
    layout = RingLayout(len(messages), 3, 20)
    entry = bytes(8) + layout.pack(messages)
    for rank, (kind, message) in enumerate(messages):
        start = layout.header(7, rank) - layout.n_put(7)
        found = layout.find(7, entry[start : start + HEADER.size])
        assert found is not None
        offset = found[1] - layout.n_put(7)
        assert (found[0], entry[offset : offset + found[2]]) == (kind, message)


def test_the_plan_of_several_shards_is_stored_once() -> None:
    layout = RingLayout(4, 1, 1000)
    stages = [bytes([stage]) * 1000 for stage in (0, 1)]
    plans = [(MessageKind.PLAN, stages[stage]) for stage in (0, 0, 1, 1)]
    assert len(layout.pack(plans)) == 4 * HEADER.size + 2 * 1000


def test_a_message_that_cannot_be_is_not_found() -> None:
    layout = RingLayout(2, 1, 16)
    first = 8 + 2 * HEADER.size
    assert layout.find(0, HEADER.pack(first + 16, 16, 0)) == (MessageKind.PLAN, 16 + first + 16, 16)
    for start, n_bytes, kind in [
        (first - 8, 8, 0),
        (first + 24, 16, 0),
        (first, 17, 0),
        (first, -1, 0),
        (first, 8, 2),
    ]:
        assert layout.find(0, HEADER.pack(start, n_bytes, kind)) is None


def test_iterations_share_entries_in_turn() -> None:
    layout = RingLayout(n_ranks=2, n_entries=3, message_bytes=100)
    assert layout.n_put(7) == layout.n_put(1) != layout.n_put(2)


def test_a_host_of_a_large_job_keeps_little() -> None:
    """Eight of any number of ranks, plans of 50 kB, four iterations ahead."""
    assert RingLayout(n_ranks=8, n_entries=4, message_bytes=50_000).ring_bytes < 2e6
