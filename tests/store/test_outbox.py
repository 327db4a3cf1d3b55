from dynapipe_hpc.store.ring_layout import HEADER, WORD, MessageKind, Outbox, RingLayout

LAYOUT = RingLayout(n_ranks=2, n_entries=1, message_bytes=8)


class Written:
    """Memory in this process, with a record of accesses."""

    def __init__(self) -> None:
        self.bytes = bytearray(LAYOUT.ring_bytes)
        self.accesses: list[tuple[str, int]] = []

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes:
        assert owner == 5
        self.accesses.append(("read", offset))
        return bytes(self.bytes[offset : offset + n_bytes])

    def write(self, owner: int, offset: int, message: bytes) -> None:
        assert owner == 5
        self.accesses.append(("write", offset))
        self.bytes[offset : offset + len(message)] = message


def taken(memory: Written, number: int, rank: int) -> tuple[MessageKind, bytes] | None:
    at = LAYOUT.header(number, rank)
    found = LAYOUT.find(number, bytes(memory.bytes[at : at + HEADER.size]))
    return found and (found[0], bytes(memory.bytes[found[1] : found[1] + found[2]]))


def test_plans_of_a_host_are_written_together_and_then_counted() -> None:
    memory = Written()
    outbox = Outbox(memory, 5, LAYOUT)
    for rank, plan in ((1, b"one"), (0, b"zero")):  # the largest may come first
        assert outbox.has_room(rank, 0)
        assert memory.accesses == []
        outbox.add(rank, 0, (MessageKind.PLAN, plan))
    assert memory.accesses == [("write", LAYOUT.body(0)), ("write", LAYOUT.n_put(0))]
    assert WORD.unpack_from(memory.bytes, LAYOUT.n_put(0)) == (1,)
    assert [taken(memory, 0, rank) for rank in (0, 1)] == [(0, b"zero"), (0, b"one")]


def test_an_entry_is_free_when_its_rank_has_taken_what_it_held() -> None:
    memory = Written()
    outbox = Outbox(memory, 5, LAYOUT)
    for rank in (0, 1):
        outbox.add(rank, 0, (MessageKind.PLAN, b""))
    assert not outbox.has_room(1, 1)
    memory.write(5, LAYOUT.n_taken(1), WORD.pack(1))
    assert outbox.has_room(1, 1)
    assert not outbox.has_room(0, 1)


def test_the_counts_of_a_host_are_read_once_for_all_of_its_ranks() -> None:
    memory = Written()
    outbox = Outbox(memory, 5, LAYOUT)
    for rank in (0, 1):
        memory.write(5, LAYOUT.n_taken(rank), WORD.pack(1))
    memory.accesses.clear()
    assert all(outbox.has_room(rank, 1) for rank in (0, 1))
    assert memory.accesses == [("read", 0)]
