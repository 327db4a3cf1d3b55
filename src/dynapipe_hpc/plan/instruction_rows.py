"""Instructions as rows of integers of equal width."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self, overload

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.plan.errors import PlanFormatError
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
_ROW = struct.Struct(f"<{COLUMNS}I")
_STORED = np.dtype("<u4")

# The number of a kind is its index here; its fields fill the first of the remaining columns.
_KINDS: tuple[type[Instruction], ...] = (
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
_FIELDS = {kind: (number, kind.__match_args__) for number, kind in enumerate(_KINDS)}
_FORWARD = _FIELDS[Forward][0]
_OF_GRADIENTS = [
    _FIELDS[kind][0]
    for kind in (Backward, BackwardInput, BackwardWeight, ReduceGradients, StepOptimizer)
]
_PASSES = [_FIELDS[kind][0] for kind in (Forward, Backward, BackwardInput, BackwardWeight)]
_MAKERS: tuple[tuple[Callable[..., Instruction], int], ...] = tuple(
    (kind, len(kind.__match_args__)) for kind in _KINDS
)
_PAYLOADS = tuple(Payload)


class InstructionRows(Sequence[Instruction]):
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
    def from_instructions(cls, instructions: Iterable[Instruction]) -> Self:
        """Encodes instructions as rows; raises `PlanFormatError`."""
        try:
            packed = b"".join(map(_pack, instructions))
        except struct.error as error:
            raise PlanFormatError(f"cannot encode an instruction: {error}") from error
        return cls(_table(packed))

    @classmethod
    def unpack(cls, data: memoryview) -> Self:
        """Decodes the rows that `pack` turned into these bytes."""
        return cls(_table(data))

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

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> "Instruction | InstructionRows":
        if isinstance(index, slice):
            return type(self)(np.ascontiguousarray(self.table[index]))
        return _instruction(self.table[index].tolist())

    def __iter__(self) -> Iterator[Instruction]:
        """The instructions in order."""
        return map(_instruction, self.table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstructionRows) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        """Hash that is equal for equal instructions."""
        return hash(self.pack())

    def __repr__(self) -> str:
        return f"InstructionRows.from_instructions({list(self)})"


def _pack(instruction: Instruction) -> bytes:
    number, fields = _FIELDS[type(instruction)]
    values = [getattr(instruction, field) for field in fields]
    return _ROW.pack(number, *values, *[0] * (COLUMNS - 1 - len(values)))


def _table(packed: bytes | memoryview) -> RowTable:
    return np.frombuffer(packed, _STORED).reshape(-1, COLUMNS).astype(np.uint32)


def _instruction(row: Sequence[int]) -> Instruction:
    number, microbatch, payload, *others = row
    make, n_fields = _MAKERS[number]
    return make(*(microbatch, _PAYLOADS[payload], *others)[:n_fields])
