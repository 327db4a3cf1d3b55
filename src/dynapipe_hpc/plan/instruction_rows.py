"""Instructions as rows of integers of one width. The columns are in docs/formats.md."""

import struct
from collections.abc import Callable, Iterable, Iterator

from dynapipe_hpc.plan.errors import PlanFormatError
from dynapipe_hpc.plan.instruction import (
    Backward,
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

INSTRUCTION = struct.Struct("<5I")  # kind, micro-batch, payload, peer, slot

# A kind's number is its place here; its fields are the first of the columns behind.
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
)
_FIELDS = {kind: (number, kind.__match_args__) for number, kind in enumerate(_KINDS)}
_MAKERS: tuple[tuple[Callable[..., Instruction], int], ...] = tuple(
    (kind, len(kind.__match_args__)) for kind in _KINDS
)
_PAYLOADS = tuple(Payload)


def pack_instructions(instructions: Iterable[Instruction]) -> bytes:
    """One row per instruction; columns that a kind does not use are 0.

    Raises:
        struct.error: A number is negative or too large for its column.
    """
    return b"".join(map(_pack, instructions))


def unpack_instructions(rows: memoryview, n_microbatches: int) -> Iterator[Instruction]:
    """The instructions of packed rows.

    Raises:
        PlanFormatError: A row is no instruction on one of the micro-batches.
    """
    for number, *columns in INSTRUCTION.iter_unpack(rows):
        if number >= len(_MAKERS):
            raise PlanFormatError(f"the plan has an instruction of the unknown kind {number}")
        make, n_fields = _MAKERS[number]
        if any(columns[n_fields:]) or columns[1] >= len(_PAYLOADS):
            raise PlanFormatError(f"the plan has a malformed row {number, *columns}")
        if n_fields and columns[0] >= n_microbatches:
            raise PlanFormatError(
                f"the plan has an instruction on micro-batch {columns[0]} of {n_microbatches}"
            )
        columns[1] = _PAYLOADS[columns[1]]
        yield make(*columns[:n_fields])


def _pack(instruction: Instruction) -> bytes:
    number, fields = _FIELDS[type(instruction)]
    values = [getattr(instruction, field) for field in fields]
    return INSTRUCTION.pack(number, *values, *[0] * (4 - len(values)))
