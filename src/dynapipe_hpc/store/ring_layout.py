"""Memory layout of a host: a ring of entries, each with the plans of an iteration."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

WORD = struct.Struct("=q")
HEADER = struct.Struct("=qqq")  # start, n_bytes, kind


class MessageKind(IntEnum):
    """Kind of a message."""

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
    iterations that it has taken. Ranks are numbered within the host. What is one object for several
    ranks is stored once; their headers have the same start, which counts from the entry.

    Attributes:
        n_ranks: Number of ranks of the host.
        n_entries: Number of iterations in a ring.
        message_bytes: Room for one message, in bytes.
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
        """Size of a ring in bytes."""
        return self.n_taken(self.n_ranks) + self.n_entries * self.entry_bytes

    def n_taken(self, rank: int) -> int:
        """Offset of the word that counts the iterations taken by a rank."""
        return rank * WORD.size

    def n_put(self, number: int) -> int:
        """Offset of the first word of an iteration's entry."""
        return self.n_taken(self.n_ranks) + number % self.n_entries * self.entry_bytes

    def body(self, number: int) -> int:
        """Offset of what follows it: headers and messages."""
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
        """Offsets of the words that count, all of which are 0 at first."""
        taken = [self.n_taken(rank) for rank in range(self.n_ranks)]
        return taken + [self.n_put(number) for number in range(self.n_entries)]

    @property
    def _messages_start(self) -> int:
        return WORD.size + self.n_ranks * HEADER.size


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // WORD.size) * WORD.size
