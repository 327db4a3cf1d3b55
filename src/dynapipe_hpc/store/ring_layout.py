"""Memory layout of a planning rank: a ring of entries per executing rank."""

import struct
from dataclasses import dataclass

HEADER = struct.Struct("=qq")  # n_bytes, kind
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Layout of one ring of entries per executing rank, one after the other; offsets are in bytes.

        ring: | n_put | n_taken | entry 0 | entry 1 | ...
        entry: | n_bytes | kind | message ... |

    All fields except the message are 8-byte words at multiples of 8 bytes. The planner writes
    n_put and the entries, the executing rank writes n_taken. Both count from the start of the job
    and never decrease: message i is present if n_put > i >= n_taken, and there is room for another
    one while n_put - n_taken < n_entries.

    Attributes:
        n_entries: Number of messages in a ring.
        message_bytes: Room for one message, in bytes.
    """

    n_entries: int
    message_bytes: int

    @property
    def entry_bytes(self) -> int:
        """Size of an entry in bytes."""
        return HEADER.size + -(-self.message_bytes // _WORD_BYTES) * _WORD_BYTES

    @property
    def ring_bytes(self) -> int:
        """Size of a ring in bytes."""
        return 2 * _WORD_BYTES + self.n_entries * self.entry_bytes

    def n_put(self, rank: int) -> int:
        """Offset of the word that counts the messages put for a rank."""
        return rank * self.ring_bytes

    def n_taken(self, rank: int) -> int:
        """Offset of the word that counts the messages taken by a rank."""
        return self.n_put(rank) + _WORD_BYTES

    def header(self, rank: int, number: int) -> int:
        """Offset of the two words before a message; messages count from the start of the job."""
        return self.n_taken(rank) + _WORD_BYTES + number % self.n_entries * self.entry_bytes

    def message(self, rank: int, number: int) -> int:
        """Offset of the bytes of a message."""
        return self.header(rank, number) + HEADER.size
