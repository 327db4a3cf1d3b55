"""The plan of one rank for one iteration, with its predicted time and memory."""

from dataclasses import dataclass

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.instruction import BackwardWeight, Payload
from dynapipe_hpc.plan.instruction_rows import InstructionRows
from dynapipe_hpc.plan.pass_spans import PassSpans


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

    `iteration`: Number of the iteration, from 0. `rank`: Rank that executes the plan, numbered
    among those of its shard, as are peers. `microbatches`: Micro-batches of the replica;
    instructions refer to them by index. `instructions`: Instructions in the order of execution.
    """

    iteration: int
    rank: int
    replica: int
    stage: int
    hidden_size: int
    microbatches: tuple[MicroBatch, ...]
    instructions: InstructionRows
    memory: MemoryPlan
    prediction: Prediction
    boundaries: tuple[Boundary, Boundary] = (Boundary.ROWS, Boundary.ROWS)
    n_stream_shards: int = 1

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights have passes of their own."""
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
