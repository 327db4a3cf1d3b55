"""The plan of one rank for one iteration: its predicted time and memory, and its text."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    InstructionRows,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory account of a rank, in bytes.

    It excludes tensors in transfer: a receive buffer before the pass that reads it, and sent
    gradients, of which up to two wait for the peer (docs/architecture.md says why).

    `stored`: Activations of every micro-batch, kept from the start of its Forward to the end of its
    Backward or BackwardWeight. `backward_transient`: Additional memory while the Backward,
    BackwardInput or BackwardWeight of each micro-batch runs.
    """

    limit: int
    static: int
    stored: tuple[int, ...]
    forward_transient: tuple[int, ...]
    backward_transient: tuple[int, ...]

    @property
    def bounds(self) -> tuple[int, int]:
        """Limit and static memory."""
        return (self.limit, self.static)

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Memory per micro-batch: stored, forward transient and backward transient."""
        return (self.stored, self.forward_transient, self.backward_transient)


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

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Start and end of the passes in order."""
        return ((start_ms, end_ms) for start_ms, end_ms in self.table.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PassSpans) and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        return hash((self.table + 0.0).tobytes())  # minus zero equals zero


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of a rank's iteration, from the planner's simulation.

    `iteration_ms`: Time of the complete iteration over all ranks, update included. `passes_ms`:
    (start, end) of every pass of this rank in plan order, from the start of the iteration.
    """

    iteration_ms: float
    passes_ms: PassSpans


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The plan of one rank for one iteration.

    If stages are cut into tensor-parallel shards, all ranks of a stage execute the same plan, each
    with the ranks of its own shard. Plans number the ranks of a shard from 0: replica x n_stages +
    stage.

    `microbatches`: Micro-batches of the replica; instructions refer to them by index.
    """

    iteration: int  # number of the iteration, from 0
    rank: int  # rank that executes the plan, numbered among the ranks of its shard, as peers are
    replica: int
    stage: int
    hidden_size: int
    microbatches: tuple[MicroBatch, ...]
    instructions: InstructionRows  # instructions in the order of execution
    memory: MemoryPlan
    prediction: Prediction
    boundaries: tuple[Boundary, Boundary] = (Boundary.ROWS, Boundary.ROWS)
    n_stream_shards: int = 1

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients have separate passes."""
        return any(isinstance(step, BackwardWeight) for step in self.instructions)

    @property
    def is_forward_only(self) -> bool:
        """Whether the plan has forward passes, but no backward pass and no update."""
        return self.instructions.are_forward_only

    def received_shape(self, microbatch: int, payload: Payload) -> tuple[int, ...]:
        """Shape of the tensor that is received for a micro-batch, see `Boundary.shape`.

        Activations come from the stage before, gradients from the stage after.
        """
        boundary = self.boundaries[payload]
        return boundary.shape(self.microbatches[microbatch], self.hidden_size, self.n_stream_shards)


def peak_bytes(plan: RankPlan) -> int:
    """Peak memory of a rank during its plan, in bytes.

    The stored bytes of a micro-batch count from the start of its Forward to the end of its
    Backward or BackwardWeight; transient bytes are added while a pass runs (see `MemoryPlan`).
    """
    return _kernels.peak_bytes(
        plan.instructions.table,
        np.array(plan.memory.bounds, np.int64),
        np.array(plan.memory.sizes, np.int64),
    )


def stored_peak_bytes(plan: RankPlan) -> int:
    """Peak sum of stored bytes, which can be counted while a plan runs.

    It excludes static memory and transient bytes.
    """
    none = (0,) * len(plan.microbatches)
    stored = replace(plan.memory, static=0, forward_transient=none, backward_transient=none)
    return peak_bytes(replace(plan, memory=stored))


_LETTERS = "ag"  # Payload.ACTIVATION and Payload.GRADIENT


def symbol(instruction: Instruction) -> str:
    """One instruction as text, such as `a0>1`."""
    match instruction:
        case Load(i):
            return f"L{i}"
        case Forward(i):
            return f"F{i}"
        case Backward(i):
            return f"B{i}"
        case BackwardInput(i):
            return f"I{i}"
        case BackwardWeight(i):
            return f"W{i}"
        case StartSend(i, payload, peer):
            return f"{_LETTERS[payload]}{i}>{peer}"
        case WaitSend(i, payload):
            return f"{_LETTERS[payload]}{i}>!"
        case StartReceive(i, payload, peer, slot):
            return f"{_LETTERS[payload]}{i}<{peer}@{slot}"
        case WaitReceive(i, payload):
            return f"{_LETTERS[payload]}{i}<!"
        case ReduceGradients():
            return "reduce"
        case StepOptimizer():
            return "step"
        case _:
            assert_never(instruction)


def rank_lines(texts: Mapping[int, str]) -> list[str]:
    """One line per rank, `rank 0 | TEXT`, with aligned bars."""
    width = max((len(str(rank)) for rank in texts), default=0)
    return [f"rank {rank:>{width}} | {text}".rstrip() for rank, text in texts.items()]


def grid(plans: Iterable[RankPlan]) -> str:
    """Plans as text, one line per rank."""
    texts = {plan.rank: " ".join(map(symbol, plan.instructions)) for plan in plans}
    return "\n".join(rank_lines(texts))
