"""Plans without a planner: passes are emitted one by one, wherever one can go next."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.cluster import Cluster
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
from dynapipe_hpc.plan.instruction_rows import InstructionRows
from dynapipe_hpc.plan.pass_spans import PassSpans
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan

Order = list[tuple[str, int]]


def orders(n_microbatches: int, n_stages: int, schedule: str) -> list[Order]:
    """Passes of every stage: 1F1B, or as many forwards ahead as the cyclic schedule runs."""
    distances = range(n_stages, 0, -1)
    warm_ups = [d if schedule == "1F1B" else 2 * d - 1 for d in distances]
    return [_alternating(n_microbatches, n) for n in warm_ups]


def _alternating(n_microbatches: int, n_warm_up: int) -> Order:
    order: Order = [("F", i) for i in range(min(n_warm_up, n_microbatches))]
    for i in range(n_microbatches):
        order.append(("B", i))
        if n_warm_up + i < n_microbatches:
            order.append(("F", n_warm_up + i))
    return order


@dataclass
class _Rank:
    order: Order
    instructions: list[Instruction] = field(default_factory=list)
    free_slots: list[int] = field(default_factory=list)
    slots: dict[int, list[int]] = field(default_factory=dict)
    inputs: set[tuple[str, int]] = field(default_factory=set)
    sent: list[tuple[int, Payload]] = field(default_factory=list)
    n_slots: int = 0

    def take_slot(self, microbatch: int) -> int:
        if not self.free_slots:
            self.free_slots.append(self.n_slots)
            self.n_slots += 1
        slot = self.free_slots.pop()
        self.slots.setdefault(microbatch, []).append(slot)
        return slot


def hand_made_plans(
    microbatches: Sequence[Sequence[MicroBatch]],
    cluster: Cluster,
    hidden_size: int,
    schedule: str,
    iteration: int = 0,
) -> list[RankPlan]:
    """The plans of all ranks, for the micro-batches of every replica."""
    return [
        RankPlan(
            iteration=iteration,
            rank=cluster.rank_of(replica, stage),
            replica=replica,
            stage=stage,
            hidden_size=hidden_size,
            microbatches=tuple(microbatches[replica]),
            instructions=InstructionRows.from_instructions(instructions),
            memory=MemoryPlan(0, 0, (), (), ()),
            prediction=Prediction(0.0, PassSpans.from_times([])),
        )
        for replica in range(cluster.n_replicas)
        for stage, instructions in enumerate(
            _instructions(len(microbatches[replica]), cluster, replica, schedule)
        )
    ]


def _instructions(
    n_microbatches: int, cluster: Cluster, replica: int, schedule: str
) -> list[list[Instruction]]:
    n_stages = cluster.n_stages
    ranks = [_Rank(list(order)) for order in orders(n_microbatches, n_stages, schedule)]
    for i in range(n_microbatches):
        ranks[0].inputs.add(("F", i))
        ranks[-1].inputs.add(("B", i))
    while any(rank.order for rank in ranks):
        for stage, rank in enumerate(ranks):
            if rank.order and rank.order[0] in rank.inputs:
                _emit(ranks, stage, cluster.rank_of(replica, 0))
    for rank in ranks:
        rank.instructions += [WaitSend(*sent) for sent in rank.sent]
        rank.instructions += [ReduceGradients(), StepOptimizer()]
    return [rank.instructions for rank in ranks]


def _emit(ranks: list[_Rank], stage: int, first_rank: int) -> None:
    """Puts the next pass of a stage into its list, and its transfer into two lists."""
    rank = ranks[stage]
    direction, i = rank.order.pop(0)
    forward = direction == "F"
    payload = Payload.ACTIVATION if forward else Payload.GRADIENT
    if forward and stage in (0, len(ranks) - 1):
        rank.instructions.append(Load(i))
    if stage != (0 if forward else len(ranks) - 1):
        rank.instructions.append(WaitReceive(i, payload))
    rank.instructions.append(Forward(i) if forward else Backward(i))
    if not forward:
        rank.free_slots += rank.slots.pop(i, [])
    neighbour = stage + (1 if forward else -1)
    if 0 <= neighbour < len(ranks):
        peer = ranks[neighbour]
        rank.instructions.append(StartSend(i, payload, first_rank + neighbour))
        rank.sent.append((i, payload))
        peer.instructions.append(StartReceive(i, payload, first_rank + stage, peer.take_slot(i)))
        peer.inputs.add((direction, i))
