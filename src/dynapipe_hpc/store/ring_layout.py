"""Memory layout of a planning rank: a ring of slots per executing rank."""

import struct
from dataclasses import dataclass

HEADER = struct.Struct("=qq")  # n_bytes, kind
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Layout of one ring of slots per executing rank, one after the other; offsets are in bytes.

        ring: | n_put | n_taken | slot 0 | slot 1 | ...
        slot: | n_bytes | kind | message ... |

    All fields except the message are 8-byte words at multiples of 8 bytes. The planner writes
    n_put and the slots, the executing rank writes n_taken. Both count from the start of the job
    and never decrease: message i is present if n_put > i >= n_taken, and there is room for another
    one while n_put - n_taken < n_slots.

    Attributes:
        n_slots: Number of messages in a ring.
        message_bytes: Room for one message, in bytes.
    """

    n_slots: int
    message_bytes: int

    @property
    def slot_bytes(self) -> int:
        """Size of a slot in bytes."""
        return HEADER.size + -(-self.message_bytes // _WORD_BYTES) * _WORD_BYTES

    @property
    def ring_bytes(self) -> int:
        """Size of a ring in bytes."""
        return 2 * _WORD_BYTES + self.n_slots * self.slot_bytes

    def n_put(self, rank: int) -> int:
        """Offset of the word that counts the messages put for a rank."""
        return rank * self.ring_bytes

    def n_taken(self, rank: int) -> int:
        """Offset of the word that counts the messages taken by a rank."""
        return self.n_put(rank) + _WORD_BYTES

    def header(self, rank: int, position: int) -> int:
        """Offset of the two words before message number `position`, counted from the start."""
        return self.n_taken(rank) + _WORD_BYTES + position % self.n_slots * self.slot_bytes

    def message(self, rank: int, position: int) -> int:
        """Offset of the bytes of message number `position`."""
        return self.header(rank, position) + HEADER.size
