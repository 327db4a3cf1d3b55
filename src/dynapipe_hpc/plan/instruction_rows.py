"""Instructions as rows of integers of equal width."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)

RowTable = npt.NDArray[np.uint32]
COLUMNS = 5  # kind, micro-batch, payload, peer, slot
_STORED = np.dtype("<u4")

# The number of a kind is its index here; its fields fill the first of the remaining columns.
KINDS: tuple[type[Instruction], ...] = (
    Load,
    Forward,
    Backward,
    StartSend,
    WaitSend,
    StartReceive,
    WaitReceive,
    ReduceGradients,
    StepOptimizer,
    BackwardInput,
    BackwardWeight,
)
_FORWARD = KINDS.index(Forward)
_OF_GRADIENTS = [
    KINDS.index(kind)
    for kind in (Backward, BackwardInput, BackwardWeight, ReduceGradients, StepOptimizer)
]
_PASSES = [KINDS.index(kind) for kind in (Forward, Backward, BackwardInput, BackwardWeight)]
_MAKERS: tuple[tuple[Callable[..., Instruction], int], ...] = tuple(
    (kind, len(kind.__match_args__)) for kind in KINDS
)
_PAYLOADS = tuple(Payload)


class InstructionRows:
    """Instructions in order, stored as integers; a row is turned into a value when it is read.

    The planner's kernels write and check rows, and plans store them; only the executor and
    printed plans need instructions as values.

    `table`: Rows, shape (n_instructions, 5), read-only.
    """

    __slots__ = ("table",)

    def __init__(self, table: RowTable) -> None:
        """Takes a table of valid rows, as kernels write it."""
        self.table = table
        self.table.flags.writeable = False

    @classmethod
    def unpack(cls, data: memoryview) -> Self:
        """Decodes the rows that `pack` turned into these bytes."""
        return cls(np.frombuffer(data, _STORED).reshape(-1, COLUMNS).astype(np.uint32))

    @property
    def are_forward_only(self) -> bool:
        """Whether there are forward passes, but nothing that computes or uses gradients."""
        kinds = self.table[:, 0]
        return _FORWARD in kinds and not np.isin(kinds, _OF_GRADIENTS).any()

    @property
    def are_passes(self) -> npt.NDArray[np.bool_]:
        """Whether each instruction is a forward or backward pass, shape (n_instructions,)."""
        return np.isin(self.table[:, 0], _PASSES)

    def pack(self) -> bytes:
        """The rows as bytes, little endian."""
        return self.table.astype(_STORED, copy=False).tobytes()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Instruction:
        return _instruction(self.table[index].tolist())

    def __iter__(self) -> Iterator[Instruction]:
        """The instructions in order."""
        return map(_instruction, self.table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstructionRows) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash(self.pack())


def _instruction(row: Sequence[int]) -> Instruction:
    number, microbatch, payload, *others = row
    make, n_fields = _MAKERS[number]
    return make(*(microbatch, _PAYLOADS[payload], *others)[:n_fields])
