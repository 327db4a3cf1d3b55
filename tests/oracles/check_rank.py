"""The rules that the plan of a rank keeps by itself, one by one."""

from dataclasses import dataclass
from typing import assert_never

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.plan.check import excerpt, picture
from dynapipe_hpc.plan.errors import PlanError
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
from dynapipe_hpc.plan.rank_plan import RankPlan

# Every micro-batch takes each of these steps once on a rank, after those it needs. Steps are
# written as in plan text, less numbers: "a<" starts to receive the activation, "a<!" waits.
_NEEDS: dict[str, tuple[str, ...]] = {
    "L": (),
    "a<": (),
    "a<!": ("a<",),
    "F": ("L", "a<!"),
    "a>": ("F",),
    "a>!": ("a>",),
    "g<": (),
    "g<!": ("g<",),
    "B": ("F", "g<!"),
    "I": ("F", "g<!"),
    "W": ("I",),
    "g>": ("B", "I"),
    "g>!": ("g>",),
}
_SEND = {Payload.ACTIVATION: "a>", Payload.GRADIENT: "g>"}
_RECEIVE = {Payload.ACTIVATION: "a<", Payload.GRADIENT: "g<"}
_WITH_STAGE_BEFORE = {"a<", "a<!", "g>", "g>!"}
_WITH_STAGE_BEHIND = {"a>", "a>!", "g<", "g<!"}


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The ranks of the stages before and behind a stage; None at an end of the pipeline."""

    before: int | None
    behind: int | None

    def steps(self, splits: bool, only_forward: bool) -> dict[str, frozenset[str]]:
        """The steps that every micro-batch takes between these neighbours, and their needs."""
        absent = {"B"} if splits else {"I", "W"}
        absent |= {"g<", "g<!", "B", "g>", "g>!"} if only_forward else set()
        absent |= _WITH_STAGE_BEFORE if self.before is None else set()
        absent |= _WITH_STAGE_BEHIND if self.behind is None else set()
        return {
            step: frozenset(needs) - absent for step, needs in _NEEDS.items() if step not in absent
        }

    def peer(self, step: str) -> int | None:
        """The rank at the other end of a transfer."""
        return self.before if step in _WITH_STAGE_BEFORE else self.behind


def check_rank(plan: RankPlan, neighbours: Neighbours, *, only_forward: bool = False) -> None:
    """Checks what can be seen without the plans of other ranks.

    Every micro-batch takes every step once, in an order that respects what each step needs;
    peers are the neighbours; a receive slot has one user at a time; memory stays within its
    limit; ReduceGradients and StepOptimizer come last, unless all ranks of the pipeline have
    `only_forward` passes. Linear in the number of instructions.

    Raises:
        PlanError: A rule is broken; the message shows where.
    """
    _check_steps(plan, neighbours, only_forward)
    _check_slots(plan, only_forward)
    _check_memory(plan)


def _check_steps(plan: RankPlan, neighbours: Neighbours, only_forward: bool) -> None:
    needs = neighbours.steps(splits(plan), only_forward)
    done: list[set[str]] = [set() for _ in plan.microbatches]
    update = [] if only_forward else [ReduceGradients(), StepOptimizer()]
    n = len(plan.instructions) - len(update)
    if list(plan.instructions)[max(n, 0) :] != update:
        raise _error(
            plan, len(plan.instructions), "a plan must end with reduce and step, in this order"
        )
    for position, instruction in enumerate(plan.instructions[:n]):
        step, i, peer = _step(instruction)
        if step == "B" and "B" not in needs:
            raise _error(
                plan, position, "a plan must split all backward passes of its rank or none"
            )
        if step not in needs:
            raise _error(plan, position, "this is not allowed here")
        if not 0 <= i < len(done):
            raise _error(plan, position, f"there are only {len(done)} micro-batches")
        if step in done[i]:
            raise _error(plan, position, "this comes a second time")
        if not needs[step] <= done[i]:
            raise _error(plan, position, f"this needs {_missing(needs[step], done[i], i)} before")
        for other in _neighbouring_slices(plan, i, step):
            if step not in done[other]:
                raise _error(plan, position, f"this needs {step}{other} before")
        if peer is not None and peer != neighbours.peer(step):
            raise _error(plan, position, f"the peer must be rank {neighbours.peer(step)}")
        done[i].add(step)
    for i, steps in enumerate(done):
        if len(steps) < len(needs):
            missing = _missing(frozenset(needs), steps, i)
            raise _error(plan, n, f"this needs {missing} before")


def _step(instruction: Instruction) -> tuple[str, int, int | None]:
    """An instruction's step, micro-batch and, where it has one, peer."""
    match instruction:
        case Load(i):
            return "L", i, None
        case Forward(i):
            return "F", i, None
        case Backward(i):
            return "B", i, None
        case BackwardInput(i):
            return "I", i, None
        case BackwardWeight(i):
            return "W", i, None
        case StartSend(i, payload, peer):
            return _SEND[payload], i, peer
        case WaitSend(i, payload):
            return _SEND[payload] + "!", i, None
        case StartReceive(i, payload, peer, _):
            return _RECEIVE[payload], i, peer
        case WaitReceive(i, payload):
            return _RECEIVE[payload] + "!", i, None
        case ReduceGradients() | StepOptimizer():
            return "end", 0, None
        case _:
            assert_never(instruction)


def _neighbouring_slices(plan: RankPlan, i: int, step: str) -> list[int]:
    """Micro-batches with the slice before (F), or behind (B, I), that of another one."""
    if step not in {"F", "B", "I"} or not isinstance(own := plan.microbatches[i], PackedRow):
        return []
    return [
        k
        for k, other in enumerate(plan.microbatches)
        if isinstance(other, PackedRow) and other.sample_ids[0] == own.sample_ids[0]
        if own.slice and other.slice
        if (
            other.slice.end == own.slice.begin
            if step == "F"
            else other.slice.begin == own.slice.end
        )
    ]


def _missing(needed: frozenset[str], done: set[str], microbatch: int) -> str:
    """The first step not done, as in plan text."""
    step = next(step for step in _NEEDS if step in needed - done)
    return f"{step[0]}{microbatch}{step[1:]}"


def _check_slots(plan: RankPlan, only_forward: bool) -> None:
    user: dict[int, int] = {}
    finished = set[int]()
    for position, instruction in enumerate(plan.instructions):
        match instruction:
            case StartReceive(i, _, _, slot):
                if slot in user and user[slot] not in finished:
                    last = "F" if only_forward else "W" if splits(plan) else "B"
                    raise _error(plan, position, f"slot {slot} is in use until {last}{user[slot]}")
                user[slot] = i
            case Forward(i) if only_forward:
                finished.add(i)
            case Backward(i) | BackwardWeight(i):
                finished.add(i)


def splits(plan: RankPlan) -> bool:
    """Whether a plan splits backward passes."""
    return any(isinstance(s, BackwardInput | BackwardWeight) for s in plan.instructions)


def _peak_bytes(plan: RankPlan) -> int:
    memory = plan.memory
    held = peak = memory.static
    for instruction in plan.instructions:
        match instruction:
            case Forward(i):
                held += memory.stored[i]
                peak = max(peak, held + memory.forward_transient[i])
            case Backward(i) | BackwardInput(i) | BackwardWeight(i):
                peak = max(peak, held + memory.backward_transient[i])
                held -= 0 if isinstance(instruction, BackwardInput) else memory.stored[i]
    return peak


def _check_memory(plan: RankPlan) -> None:
    memory, n = plan.memory, len(plan.microbatches)
    columns = (memory.stored, memory.forward_transient, memory.backward_transient)
    if any(len(column) != n for column in columns):
        raise PlanError(
            f"iteration {plan.iteration}: rank {plan.rank} accounts for the memory of "
            f"{[len(column) for column in columns]} micro-batches, but has {n}"
        )
    if (needed := _peak_bytes(plan)) > memory.limit:
        raise PlanError(
            f"iteration {plan.iteration}: rank {plan.rank} needs {needed} bytes at its peak, "
            f"but may use {memory.limit}"
        )


def _error(plan: RankPlan, position: int, problem: str) -> PlanError:
    shown = picture({plan.rank: excerpt(plan.instructions, position)})
    return PlanError(f"iteration {plan.iteration}: rank {plan.rank}: {problem}:{shown}")
