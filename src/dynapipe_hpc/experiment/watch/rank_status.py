"""Status of a rank, and the rank that probably blocks the others."""

from collections.abc import Iterable
from dataclasses import dataclass

from dynapipe_hpc.executor.describe_step import peer_of, shape_of
from dynapipe_hpc.experiment.watch.position import Phase, Position
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import (
    Instruction,
    ReduceGradients,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import symbol

_WAITS_FOR_OTHERS = (WaitSend, WaitReceive, ReduceGradients, StepOptimizer)
_DOING = {
    Phase.STARTS: "starts",
    Phase.WAITS_FOR_PLAN: "waits for its plan",
    Phase.COMPARES_PLANS: "compares plans with all ranks",
    Phase.EXECUTES: "waits for its device",
    Phase.REPORTS: "reports to rank 0",
    Phase.SAVES: "writes a checkpoint",
}


@dataclass(frozen=True, slots=True)
class RankStatus:
    """Status of one rank.

    Attributes:
        rank: Number of the rank in the job.
        host: Name of its host.
        process: State of its process, as the system reports it.
        for_s: Time since it last made progress.
        iteration: Iteration that it works on.
        doing: Instruction by number, name and symbol, or the phase it is in.
        action: Name of the instruction alone, or the phase it is in.
        microbatch: Number and shape of the instruction's micro-batch, if it has one.
        peer: Rank at the other end, if the instruction is a transfer.
        waits: Whether it may be waiting for other ranks.
    """

    rank: int
    host: str
    process: str
    for_s: float
    iteration: int
    doing: str
    action: str
    microbatch: str
    peer: str
    waits: bool

    @property
    def place(self) -> str:
        """Iteration, instruction, micro-batch and peer, in words."""
        place = f"iteration {self.iteration}, {self.doing}"
        place += f", micro-batch {self.microbatch}" if self.microbatch else ""
        return place + (f", peer {self.peer}" if self.peer else "")


def whereabouts_of(
    rank: int, host: str, process: str, *, for_s: float, position: Position, cluster: Cluster
) -> RankStatus:
    """Reads a position; peers are numbered as the job does, not as plans do."""
    standing = position.look()
    phase, iteration = standing.phase, standing.iteration
    plan = position.read_plan() if phase is Phase.EXECUTES else None
    index = standing.on_device
    if plan is None or index >= len(plan.instructions):
        waits = phase is not Phase.EXECUTES
        doing = _DOING[phase]
        return RankStatus(rank, host, process, for_s, iteration, doing, doing, "", "", waits)
    instruction = plan.instructions[index]
    evaluates = "evaluation, " if plan.is_forward_only else ""
    name = type(instruction).__name__
    launched = f", {standing.index} launched" if index < standing.index else ""
    return RankStatus(
        rank=rank,
        host=host,
        process=process,
        for_s=for_s,
        iteration=iteration,
        doing=f"{evaluates}instruction {index} ({name} {symbol(instruction)}){launched}",
        action=evaluates + name,
        microbatch=shape_of(plan, instruction),
        peer=_peer(plan, instruction, rank, cluster),
        waits=isinstance(instruction, _WAITS_FOR_OTHERS),
    )


def suspect_of(statuses: Iterable[RankStatus]) -> RankStatus:
    """The rank that probably blocks the others."""
    return max(statuses, key=suspicion_of)


def suspicion_of(where: RankStatus) -> tuple[bool, bool, float]:
    """Key by which ranks are sorted; the larger it is, the more probably the rank blocks others.

    A rank whose process does not run; else one that does not wait for others; else the one without
    progress for longest.
    """
    return where.process in ("stopped", "gone"), not where.waits, where.for_s


def _peer(plan: RankPlan, instruction: Instruction, rank: int, cluster: Cluster) -> str:
    peer = peer_of(plan, instruction)
    if peer is None:
        return ""
    return str(peer * cluster.n_shards + cluster.shard_of(rank))
