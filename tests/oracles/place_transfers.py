"""Transfers placed as the kernel does it, one pass after the other."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence

from tests.examples.splits_backward import splits_backward

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
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule
from dynapipe_hpc.planner.schedule.timeline import Timeline

# Gradients that a rank sends, or activations without gradients, stay in memory until waited for,
# which no account includes.
_SENDS_IN_FLIGHT = 2


def place_transfers(
    schedule: Schedule, timeline: Timeline, peers: Sequence[int]
) -> list[tuple[Instruction, ...]]:
    """The instructions of every stage of one replica; see the kernel's header."""
    ranks = [None, *peers, None]
    passes = [each for row in schedule.passes for each in row]
    only_forward = bool(passes) and all(kind is PassKind.FORWARD for kind, _ in passes)
    stages = [
        _Stage(*neighbours, only_forward) for neighbours in zip(ranks[:-2], ranks[2:], strict=True)
    ]
    for stage, (kind, i) in _by_end(schedule, timeline):
        if kind is PassKind.FORWARD:
            stages[stage].forward(i)
            if stage + 1 < len(stages):
                stages[stage + 1].receive(i, Payload.ACTIVATION, peers[stage])
        elif kind is PassKind.BACKWARD:
            stages[stage].backward(i, splits_backward(schedule))
            if stage > 0:
                stages[stage - 1].receive(i, Payload.GRADIENT, peers[stage])
        else:
            stages[stage].weight(i)
    return [stage.finish() for stage in stages]


def _by_end(schedule: Schedule, timeline: Timeline) -> Iterator[tuple[int, Pass]]:
    """Every pass with its stage, in the order in which they end; of equals, by stage."""
    ends = sorted(
        (end_ms, stage, k)
        for stage, row in enumerate(timeline.end_ms.tolist())
        for k, end_ms in enumerate(row)
    )
    passes = schedule.passes
    return ((stage, passes[stage][k]) for _, stage, k in ends)


class _Stage:
    """The instructions of a stage between two ranks, as far as they are written."""

    def __init__(self, before: int | None, behind: int | None, only_forward: bool) -> None:
        self._before = before
        self._behind = behind
        self._only_forward = only_forward
        self._instructions: list[Instruction] = []
        self._slots = _ReceiveSlots()
        self._sent: deque[WaitSend] = deque()

    def receive(self, i: int, payload: Payload, peer: int) -> None:
        """Adds the start of a receive."""
        self._instructions.append(StartReceive(i, payload, peer, self._slots.take(i)))

    def forward(self, i: int) -> None:
        """Adds a Forward, what it waits for, and the start of its send."""
        if self._only_forward:
            self._keep_few_sends()
        self._instructions.append(Load(i))
        if self._before is not None:
            self._instructions.append(WaitReceive(i, Payload.ACTIVATION))
        self._instructions.append(Forward(i))
        if self._behind is not None:
            self._instructions.append(StartSend(i, Payload.ACTIVATION, self._behind))
            if self._only_forward:
                self._sent.append(WaitSend(i, Payload.ACTIVATION))
        if self._only_forward:
            self._slots.release(i)

    def backward(self, i: int, splits: bool) -> None:
        """Adds a Backward, what it waits for, and the start of its send."""
        if self._behind is not None:
            self._instructions.append(WaitReceive(i, Payload.GRADIENT))
            self._instructions.append(WaitSend(i, Payload.ACTIVATION))
        self._keep_few_sends()
        self._instructions.append(BackwardInput(i) if splits else Backward(i))
        if not splits:
            self._slots.release(i)
        if self._before is not None:
            self._instructions.append(StartSend(i, Payload.GRADIENT, self._before))
            self._sent.append(WaitSend(i, Payload.GRADIENT))

    def weight(self, i: int) -> None:
        """Adds a BackwardWeight."""
        self._instructions.append(BackwardWeight(i))
        self._slots.release(i)

    def finish(self) -> tuple[Instruction, ...]:
        """Adds the end of the iteration; returns the whole list."""
        self._instructions += self._sent
        update = () if self._only_forward else (ReduceGradients(), StepOptimizer())
        return (*self._instructions, *update)

    def _keep_few_sends(self) -> None:
        if len(self._sent) == _SENDS_IN_FLIGHT:
            self._instructions.append(self._sent.popleft())


class _ReceiveSlots:
    """Hands out the lowest free slot and takes back a micro-batch's slots together."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._n_slots = 0
        self._held: dict[int, list[int]] = {}

    def take(self, microbatch: int) -> int:
        """A slot for one tensor of a micro-batch."""
        if not self._free:
            heapq.heappush(self._free, self._n_slots)
            self._n_slots += 1
        slot = heapq.heappop(self._free)
        self._held.setdefault(microbatch, []).append(slot)
        return slot

    def release(self, microbatch: int) -> None:
        """Frees the slots of a micro-batch, whose Backward is done."""
        for slot in self._held.pop(microbatch, []):
            heapq.heappush(self._free, slot)
