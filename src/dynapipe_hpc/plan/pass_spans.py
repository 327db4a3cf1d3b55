"""Start and end of passes as an array, as the simulation finds them and plans store them."""

from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

_STORED = np.dtype("<f8")


class PassSpans:
    """Start and end in ms of passes in order; a pair is made when it is read.

    Plans of large batches have millions of passes, and most pairs are only stored.

    `table`: Start and end of every pass, shape (n_passes, 2), read-only.
    """

    __slots__ = ("table",)

    def __init__(self, table: npt.NDArray[np.float64]) -> None:
        """Takes a table of starts and ends."""
        self.table = table
        self.table.flags.writeable = False

    @classmethod
    def unpack(cls, data: memoryview) -> Self:
        """Decodes the times that `pack` turned into these bytes."""
        return cls(np.frombuffer(data, _STORED).reshape(-1, 2).astype(np.float64))

    def pack(self) -> bytes:
        """The times as bytes, little endian."""
        return self.table.astype(_STORED, copy=False).tobytes()

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Start and end of the passes in order."""
        return ((start_ms, end_ms) for start_ms, end_ms in self.table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PassSpans) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        """Hash that is equal for equal times."""
        return hash((self.table + 0.0).tobytes())  # minus zero equals zero
