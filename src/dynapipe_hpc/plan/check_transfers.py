"""The rules that the ranks of a pipeline keep together."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from dynapipe_hpc.plan.errors import PlanError
from dynapipe_hpc.plan.excerpt import excerpt, picture
from dynapipe_hpc.plan.instruction import Payload, StartReceive, StartSend, WaitReceive, WaitSend
from dynapipe_hpc.plan.rank_plan import RankPlan


def check_transfers(plans: Sequence[RankPlan]) -> None:
    """Executes the transfers of one pipeline symbolically, under NCCL's rules.

    All operations between two ranks, in both directions, form one queue: they match in the
    order in which each side starts them, and none completes before those ahead of it. A Wait
    blocks its rank until its operation is complete. Linear in the number of instructions.

    Args:
        plans: Of one replica, by stage, each right by itself (`check_rank`): then both sides
            of a queue hold the same transfers, and only order is left to be checked.

    Raises:
        PlanError: Two ranks disagree on the order, or ranks wait for each other for ever.
    """
    for lower, upper in pairwise(plans):
        _check_order(lower, upper)
    stuck = _waiting_for_ever(plans)
    if stuck:
        shown = {p.rank: excerpt(p.instructions, stuck[p.rank]) for p in plans if p.rank in stuck}
        raise PlanError(
            f"iteration {plans[0].iteration}: ranks {' and '.join(map(str, shown))} "
            f"wait for each other for ever:{picture(shown)}"
        )


def _check_order(lower: RankPlan, upper: RankPlan) -> None:
    below, above = _starts(lower, upper.rank), _starts(upper, lower.rank)
    for k, (one, other) in enumerate(zip(below, above, strict=True)):
        if (one.microbatch, one.payload) != (other.microbatch, other.payload):
            shown = {lower.rank: excerpt(below, k), upper.rank: excerpt(above, k)}
            raise PlanError(
                f"iteration {lower.iteration}: ranks {lower.rank} and {upper.rank} "
                f"disagree on transfer {k} between them:{picture(shown)}"
            )


def _starts(plan: RankPlan, peer: int) -> list[StartSend | StartReceive]:
    """A rank's side of the queue between it and a peer."""
    return [
        instruction
        for instruction in plan.instructions
        if isinstance(instruction, StartSend | StartReceive) and instruction.peer == peer
    ]


class _Queue:
    """The operations between two ranks: how many each side has started."""

    def __init__(self, one: int, other: int) -> None:
        self._n_started = {one: 0, other: 0}

    def start(self, rank: int) -> int:
        """Starts the next operation of a side; returns its place in the queue."""
        self._n_started[rank] += 1
        return self._n_started[rank] - 1

    def n_complete(self) -> int:
        """Operations that both sides have started: they complete in order."""
        return min(self._n_started.values())


class _Wait(NamedTuple):
    """A rank that waits at a position of its plan for an operation of a queue."""

    position: int
    queue: _Queue
    place: int

    def is_over(self) -> bool:
        return self.queue.n_complete() > self.place


def _waiting_for_ever(plans: Sequence[RankPlan]) -> dict[int, int]:
    """Executes all plans; for each rank that cannot finish, the position at which it waits."""
    queues: dict[int, dict[int, _Queue]] = {plan.rank: {} for plan in plans}
    for lower, upper in pairwise(plans):
        queue = _Queue(lower.rank, upper.rank)
        queues[lower.rank][upper.rank] = queues[upper.rank][lower.rank] = queue
    runs = {plan.rank: _run(plan, queues[plan.rank]) for plan in plans}
    waiting: dict[int, _Wait] = {}
    ready = list(runs)
    while ready:
        rank = ready.pop()
        wait = next(runs[rank], None)
        if wait is not None:
            waiting[rank] = wait
        woken = [peer for peer in queues[rank] if peer in waiting and waiting[peer].is_over()]
        for peer in woken:
            del waiting[peer]
        ready += woken
    return {rank: wait.position for rank, wait in waiting.items()}


def _run(plan: RankPlan, queues: Mapping[int, _Queue]) -> Iterator[_Wait]:
    """Executes one rank's plan; yields where it has to wait, to be resumed when that is over."""
    started: dict[tuple[str, int, Payload], tuple[_Queue, int]] = {}
    for position, instruction in enumerate(plan.instructions):
        match instruction:
            case StartSend(i, payload, peer):
                started["send", i, payload] = queues[peer], queues[peer].start(plan.rank)
                continue
            case StartReceive(i, payload, peer, _):
                started["receive", i, payload] = queues[peer], queues[peer].start(plan.rank)
                continue
            case WaitSend(i, payload):
                wait = _Wait(position, *started["send", i, payload])
            case WaitReceive(i, payload):
                wait = _Wait(position, *started["receive", i, payload])
            case _:
                continue
        if not wait.is_over():
            yield wait
