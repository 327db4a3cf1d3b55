"""Rings of plans in the memory of hosts: layout, and the messages that a planner collects."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Protocol


@dataclass(frozen=True)
class Hosts:
    """Hosts of a job, each named by its leader, the first rank; `leader_of` is indexed by rank."""

    leader_of: tuple[int, ...]

    @cached_property
    def ranks_of(self) -> dict[int, list[int]]:
        """The ranks of every host, ascending; the key is the host's leader."""
        ranks_by_host: dict[int, list[int]] = {}
        for rank, leader in enumerate(self.leader_of):
            ranks_by_host.setdefault(leader, []).append(rank)
        return ranks_by_host

    @cached_property
    def place_of(self) -> dict[int, int]:
        """The place of every rank among the ranks of its host, by rank."""
        return {rank: place for ranks in self.ranks_of.values() for place, rank in enumerate(ranks)}


class Memory(Protocol):
    """Memory of other ranks, in which the rings of hosts are.

    Contract: `read` and `write` are complete when they return. A rank that reads bytes of a write
    also finds the bytes of all earlier writes of the writing rank.
    """

    def read(self, owner: int, offset: int, n_bytes: int) -> bytes: ...

    def write(self, owner: int, offset: int, message: bytes) -> None: ...


WORD = struct.Struct("=q")
HEADER = struct.Struct("=qqq")  # start, n_bytes, kind


class MessageKind(IntEnum):
    PLAN = 0
    FAILURE = 1


Message = tuple[MessageKind, bytes]


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Layout of the ring of a host, for all of its ranks; offsets are in bytes.

        ring: | n_taken of rank 0 | n_taken of rank 1 | ... | entry 0 | entry 1 | ...
        entry: | n_put | header of rank 0 | header of rank 1 | ... | messages ... |
        header: | start | n_bytes | kind |

    All fields except the messages are 8-byte words at multiples of 8 bytes. Iterations count from
    0 at the start of the job; entry `number % n_entries` holds iteration `number` when its n_put is
    `number + 1`, which its planner writes last. A rank writes its own n_taken, the number of
    iterations that it has taken. Ranks are numbered within the host. An object that several ranks
    share is stored once; their headers have the same start, counted from the entry.
    """

    n_ranks: int
    n_entries: int
    message_bytes: int

    @property
    def entry_bytes(self) -> int:
        """Size of an entry in bytes; ranks may all have different messages of the largest size."""
        return self._messages_start + self.n_ranks * _padded(self.message_bytes)

    @property
    def ring_bytes(self) -> int:
        return self.n_taken(self.n_ranks) + self.n_entries * self.entry_bytes

    def n_taken(self, rank: int) -> int:
        """Offset of the word that counts the iterations taken by a rank."""
        return rank * WORD.size

    def n_put(self, number: int) -> int:
        """Offset of the first word of an iteration's entry."""
        return self.n_taken(self.n_ranks) + number % self.n_entries * self.entry_bytes

    def body(self, number: int) -> int:
        """Offset of an entry's headers and messages, which follow n_put."""
        return self.n_put(number) + WORD.size

    def header(self, number: int, rank: int) -> int:
        """Offset of the header of a rank's message."""
        return self.body(number) + rank * HEADER.size

    def pack(self, messages: Sequence[Message]) -> bytes:
        """The body of an entry with the messages of the ranks of the host, by rank."""
        headers, parts, end = [], [], self._messages_start
        starts: dict[int, int] = {}  # by identity, as comparing takes longer than copying
        for kind, message in messages:
            if id(message) not in starts:
                starts[id(message)] = end
                end += _padded(len(message))
                parts.append(message.ljust(_padded(len(message)), b"\0"))
            headers.append(HEADER.pack(starts[id(message)], len(message), kind))
        return b"".join([*headers, *parts])

    def find(self, number: int, header: bytes) -> tuple[MessageKind, int, int] | None:
        """Kind, offset and size of the message that a header names; None if it is invalid."""
        start, n_bytes, kind = HEADER.unpack(header)
        fits = self._messages_start <= start <= self.entry_bytes - n_bytes
        if kind not in set(MessageKind) or not 0 <= n_bytes <= self.message_bytes or not fits:
            return None
        return MessageKind(kind), self.n_put(number) + start, n_bytes

    @property
    def counts(self) -> list[int]:
        """Offsets of all words n_taken and n_put, which are 0 at first."""
        taken = [self.n_taken(rank) for rank in range(self.n_ranks)]
        return taken + [self.n_put(number) for number in range(self.n_entries)]

    @property
    def _messages_start(self) -> int:
        return WORD.size + self.n_ranks * HEADER.size


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // WORD.size) * WORD.size


class Outbox:
    """Plans of an iteration for the ranks of a host, sent together when the last plan is known.

    Ranks are numbered within the host, and iterations from the start of the job.
    """

    def __init__(self, memory: Memory, owner: int, layout: RingLayout) -> None:
        """Sends plans into the ring at the start of the memory of `owner`."""
        self._memory, self._owner, self._layout = memory, owner, layout
        self._n_taken = [0] * layout.n_ranks
        self._messages: dict[int, Message] = {}

    def has_room(self, rank: int, number: int) -> bool:
        """Whether a rank has taken the iteration whose entry this one needs."""
        if not self._is_free(rank, number):
            counts = self._memory.read(self._owner, 0, self._layout.n_ranks * WORD.size)
            self._n_taken = [count for (count,) in WORD.iter_unpack(counts)]
        return self._is_free(rank, number)

    def add(self, rank: int, number: int, message: Message) -> None:
        """Adds a rank's message, for which there must be room; the last to be added sends all."""
        self._messages[rank] = message
        if len(self._messages) == self._layout.n_ranks:
            body = self._layout.pack([message for _, message in sorted(self._messages.items())])
            # The count last: a rank that sees it reads the body at once.
            self._memory.write(self._owner, self._layout.body(number), body)
            self._memory.write(self._owner, self._layout.n_put(number), WORD.pack(number + 1))
            self._messages.clear()

    def _is_free(self, rank: int, number: int) -> bool:
        return number - self._n_taken[rank] < self._layout.n_entries
