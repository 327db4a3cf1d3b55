"""The rules that ranks keep together: their transfers match, and end."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dynapipe_hpc.plan.check import excerpt, picture
from dynapipe_hpc.plan.errors import PlanError
from dynapipe_hpc.plan.instruction import Payload, StartReceive, StartSend, WaitReceive, WaitSend
from dynapipe_hpc.plan.rank_plan import RankPlan

_Start = StartSend | StartReceive


def check_transfers(plans: Sequence[RankPlan], *, starts_block: bool = True) -> None:
    """Executes the transfers of ranks symbolically, under NCCL's rules.

    All operations between two ranks, in both directions, form one queue: they match in the
    order in which each side starts them, and none completes before those ahead of it. A Wait
    blocks its rank until its operation is complete. Linear in the number of instructions.

    Args:
        plans: Of ranks that each wait once for every operation, after its start (`check_rank`).
        starts_block: Whether a start blocks its rank, too, until the peer starts its side.

    Raises:
        PlanError: Two ranks disagree on the order, or ranks wait for ever.
    """
    queues: dict[frozenset[int], _Queue] = {}
    waiting = _execute(plans, queues, starts_block)
    for pair in sorted(queues, key=sorted):
        queue = queues[pair]
        _check_order(queue, plans)
    if waiting:
        shown = {
            plan.rank: excerpt(plan.instructions, waiting[plan.rank].position)
            for plan in plans
            if plan.rank in waiting
        }
        raise PlanError(
            f"iteration {plans[0].iteration}: transfers hang, "
            f"these ranks wait for ever:{picture(shown)}"
        )


class _Queue:
    """The operations between two ranks, as each side has started them."""

    def __init__(self, pair: frozenset[int]) -> None:
        self.sides: dict[int, list[_Start]] = {rank: [] for rank in sorted(pair)}

    def n_complete(self) -> int:
        """Operations that both sides have started."""
        return min(map(len, self.sides.values()))


class _Wait(NamedTuple):
    """A rank stopped at a position of its plan, for an operation of a queue."""

    position: int
    queue: _Queue
    place: int

    def is_over(self) -> bool:
        return self.queue.n_complete() > self.place


def _execute(
    plans: Sequence[RankPlan], queues: dict[frozenset[int], _Queue], starts_block: bool
) -> dict[int, _Wait]:
    """Runs all ranks as far as they get; returns those that wait for ever."""
    runs = {plan.rank: _run(plan, queues, starts_block) for plan in plans}
    waiting: dict[int, _Wait] = {}
    ready = list(runs)
    while ready:
        rank = ready.pop()
        wait = next(runs[rank], None)
        if wait is not None:
            waiting[rank] = wait
        # Only what this rank has started can end another's wait.
        woken = [r for r, w in waiting.items() if rank in w.queue.sides and w.is_over()]
        for other in woken:
            del waiting[other]
        ready += woken
    return waiting


def _run(
    plan: RankPlan, queues: dict[frozenset[int], _Queue], starts_block: bool
) -> Iterator[_Wait]:
    """Runs one rank; yields each time it has to stop, to be resumed when the wait is over."""
    started: dict[tuple[type[_Start], int, Payload], _Wait] = {}
    for position, instruction in enumerate(plan.instructions):
        match instruction:
            case StartSend(i, payload, peer) | StartReceive(i, payload, peer):
                pair = frozenset((plan.rank, peer))
                if pair not in queues:
                    queues[pair] = _Queue(pair)
                queue = queues[pair]
                side = queue.sides[plan.rank]
                wait = _Wait(position, queue, len(side))
                started[type(instruction), i, payload] = wait
                side.append(instruction)
                if starts_block and not wait.is_over():
                    yield wait
            case WaitSend(i, payload) | WaitReceive(i, payload):
                start = StartSend if isinstance(instruction, WaitSend) else StartReceive
                wait = started[start, i, payload]._replace(position=position)
                if not wait.is_over():
                    yield wait


def _check_order(queue: _Queue, plans: Sequence[RankPlan]) -> None:
    (lower, below), (upper, above) = queue.sides.items()
    for k, (one, other) in enumerate(zip(below, above, strict=False)):
        same_tensor = (one.microbatch, one.payload) == (other.microbatch, other.payload)
        if not same_tensor or type(one) is type(other):
            whole = {p.rank: _starts(p, {lower: upper, upper: lower}.get(p.rank)) for p in plans}
            shown = picture({rank: excerpt(whole[rank], k) for rank in (lower, upper)})
            raise PlanError(
                f"iteration {plans[0].iteration}: ranks {lower} and {upper} "
                f"disagree on transfer {k} between them:{shown}"
            )


def _starts(plan: RankPlan, peer: int | None) -> list[_Start]:
    return [s for s in plan.instructions if isinstance(s, _Start) and s.peer == peer]
