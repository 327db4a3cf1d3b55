"""Instructions: the steps of a plan. Each docstring defines what its instruction does.

The names map one to one onto those of the paper (docs/glossary.md). Sends and receives are started
and waited for separately, so that transfers overlap computation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Payload(IntEnum):
    """Kind of tensor that a transfer carries."""

    ACTIVATION = 0
    GRADIENT = 1


@dataclass(frozen=True, slots=True)
class Load:
    """Reads the tokens of a micro-batch, if this stage needs them."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Computes a micro-batch's activation from the one received (or loaded) and keeps it."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Computes a micro-batch's gradients from the gradient received; frees what Forward kept."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class BackwardInput:
    """Computes only the gradient of a micro-batch's input; BackwardWeight does the rest."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class BackwardWeight:
    """Computes a micro-batch's gradients of weights and frees what Forward kept.

    It may come at any time after the micro-batch's BackwardInput. A rank's plan splits every
    backward pass into these two, or none.
    """

    microbatch: int


@dataclass(frozen=True, slots=True)
class StartSend:
    """Starts sending the result of the micro-batch's last Forward, Backward or BackwardInput."""

    microbatch: int
    payload: Payload
    peer: int


@dataclass(frozen=True, slots=True)
class WaitSend:
    """Waits until a send started earlier no longer needs its tensor, and drops the tensor."""

    microbatch: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class StartReceive:
    """Starts receiving a tensor into a receive buffer.

    The buffer `slot` is in use from here until the micro-batch's Backward or BackwardWeight ends.
    """

    microbatch: int
    payload: Payload
    peer: int
    slot: int


@dataclass(frozen=True, slots=True)
class WaitReceive:
    """Waits until a receive started earlier has its tensor."""

    microbatch: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class ReduceGradients:
    """Sums the gradients of this stage over all replicas (data-parallel all-reduce)."""


@dataclass(frozen=True, slots=True)
class StepOptimizer:
    """Clips the gradients by their norm over all stages and updates the weights."""


Instruction = (
    Load
    | Forward
    | Backward
    | BackwardInput
    | BackwardWeight
    | StartSend
    | WaitSend
    | StartReceive
    | WaitReceive
    | ReduceGradients
    | StepOptimizer
)

RowTable = npt.NDArray[np.uint32]
COLUMNS = 5  # kind, micro-batch, payload, peer, slot

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

    @property
    def are_forward_only(self) -> bool:
        """Whether there are forward passes, but nothing that computes or uses gradients."""
        kinds = self.table[:, 0]
        return _FORWARD in kinds and not np.isin(kinds, _OF_GRADIENTS).any()

    @property
    def are_passes(self) -> npt.NDArray[np.bool_]:
        """Whether each instruction is a forward or backward pass, shape (n_instructions,)."""
        return np.isin(self.table[:, 0], _PASSES)

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
        return hash(self.table.tobytes())


def _instruction(row: Sequence[int]) -> Instruction:
    number, microbatch, payload, *others = row
    make, n_fields = _MAKERS[number]
    return make(*(microbatch, _PAYLOADS[payload], *others)[:n_fields])
