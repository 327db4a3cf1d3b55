import time
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

import dynapipe_hpc.store.mpi as mpi_memory
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.store.mpi import MpiMemory, check_unified, poll
from dynapipe_hpc.store.ring_layout import HEADER, WORD, Hosts, MessageKind, Outbox, RingLayout


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


def test_a_host_of_a_large_job_keeps_little() -> None:
    """Eight of any number of ranks, plans of 50 kB, four iterations ahead."""
    assert RingLayout(n_ranks=8, n_entries=4, message_bytes=50_000).ring_bytes < 2e6


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


def test_the_counts_of_a_host_are_read_once_for_all_of_its_ranks() -> None:
    memory = Written()
    outbox = Outbox(memory, 5, LAYOUT)
    for rank in (0, 1):
        memory.write(5, LAYOUT.n_taken(rank), WORD.pack(1))
    memory.accesses.clear()
    assert all(outbox.has_room(rank, 1) for rank in (0, 1))
    assert memory.accesses == [("read", 0)]


def test_an_answer_that_is_there_is_taken_even_without_time_to_wait() -> None:
    assert poll(lambda: True, 1, timeout_s=0)


def test_a_wait_leaves_the_core_to_others() -> None:
    start_s = time.thread_time()
    poll(lambda: False, 0, timeout_s=0.5)  # with the shortest pauses
    assert time.thread_time() - start_s < 0.25


def asked_at(first_s: float, **longest: float) -> list[float]:
    """Moments of a wait of 0.4 s, after the first."""
    asked: list[float] = []

    def ask() -> bool:
        asked.append(time.monotonic())
        return False

    poll(ask, first_s, timeout_s=0.4, **longest)
    return [moment - asked[0] for moment in asked]


def test_a_longer_wait_asks_less_often() -> None:
    asked = asked_at(0.01)
    early, late = (sum(a < s <= b for s in asked) for a, b in ((0, 0.1), (0.3, 0.4)))
    assert late < 0.6 * early


def test_the_longest_pause_is_chosen_by_who_waits() -> None:
    def asked_late(**longest: float) -> int:
        return sum(moment > 0.1 for moment in asked_at(0.1, **longest))

    # With a tenth of the wait each, 15 pauses, and one more look at the time limit.
    assert asked_late(longest_pause_s=1.0) <= 16
    assert asked_late() > 50


@pytest.mark.parametrize("block_bytes", [1 << 30, 3])
def test_bytes_are_read_as_written(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks, too, as messages of more bytes than MPI can count need."""
    monkeypatch.setattr(mpi_memory, "_BLOCK_BYTES", block_bytes)
    window = memoryview(bytearray(32))
    memory = MpiMemory(MPI.Intracomm(MPI.COMM_SELF.Dup()), window)
    memory.write(0, 16, b"ten bytes.")
    assert memory.read(0, 15, 12) == b"\0ten bytes.\0"
    assert bytes(window[16:26]) == b"ten bytes."
    memory.close()


def test_ranks_are_numbered_within_their_host() -> None:
    hosts = Hosts((0, 1, 0, 1, 1))
    assert hosts.ranks_of == {0: [0, 2], 1: [1, 3, 4]}
    assert [hosts.place_of[rank] for rank in range(5)] == [0, 0, 1, 1, 2]


def test_memory_that_mpi_copies_is_refused() -> None:
    window: Any = SimpleNamespace(model=MPI.WIN_SEPARATE)
    with pytest.raises(RunError, match=r"a second copy of memory that ranks share .* OMPI_MCA_osc"):
        check_unified(window)
