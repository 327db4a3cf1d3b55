"""What one rank does in one iteration, and what that is predicted to cost."""

from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.boundary import Boundary
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.plan.instruction_rows import InstructionRows


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory account of a rank, in bytes.

    Tensors in transfer are not in it: a receive buffer before the pass that reads it, and sent
    gradients, of which up to two wait for the peer (docs/architecture.md says why).

    Attributes:
        limit: What the rank may use.
        static: Weights, gradients and optimizer state.
        stored: Per micro-batch, kept from the start of its Forward to the end of its Backward or
            BackwardWeight.
        forward_transient: Per micro-batch, needed on top while Forward runs.
        backward_transient: Per micro-batch, needed on top while Backward, BackwardInput or
            BackwardWeight runs.
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
        """What micro-batches need: stored, forward transient and backward transient."""
        return (self.stored, self.forward_transient, self.backward_transient)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the planner's simulation says of a rank's iteration.

    Attributes:
        iteration_ms: Time of the whole iteration over all ranks, update included.
        passes_ms: (start, end) of every pass of this rank in plan order, from the start of the
            iteration.
    """

    iteration_ms: float
    passes_ms: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The plan of one rank for one iteration.

    Where stages are cut into shards, the ranks of a stage execute one plan, each together with
    the ranks of its own shard, which plans number from 0: replica x n_stages + stage.

    Attributes:
        iteration: Number of the iteration, from 0.
        rank: The rank that executes the plan, among those of its shard; so are peers.
        replica: The rank's replica.
        stage: The rank's stage.
        hidden_size: Width of the tensors between stages.
        microbatches: The replica's micro-batches; instructions refer to them by index.
        instructions: In the order of execution.
        memory: The memory account.
        prediction: The simulated times.
        boundaries: What travels before and behind the rank's stage.
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

    def received_shape(self, microbatch: int, payload: Payload) -> tuple[int, int, int]:
        """Shape (rows, tokens, width) of what arrives for a micro-batch.

        Activations come from the stage before, gradients from the one behind.
        """
        m = self.microbatches[microbatch]
        tokens = self.boundaries[payload].tokens_of(m)
        return (m.n_rows, tokens, self.hidden_size)
