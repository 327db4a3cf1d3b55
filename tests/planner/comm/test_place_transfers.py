"""Places of sends, receives and waits, as pictures and as rules."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.example_plans import (
    drawn_schedules,
    drawn_timelines,
    n_microbatches_of,
    plans_of,
    timeline_of,
)
from tests.examples.stage_costs import (
    drawn_costs,
    no_limit,
    parse_schedule,
    splits_backward,
    with_columns,
)

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Link
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
from dynapipe_hpc.plan.rank_plan import MemoryPlan, RankPlan, grid, peak_bytes
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.make_plans import place_transfers
from dynapipe_hpc.planner.schedule.rules import RULES, SPLIT_RULES, name_of
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule, ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import Timeline, simulate

# Gradients that a rank sends, or activations without gradients, stay in memory until waited for,
# which no account includes.
_SENDS_IN_FLIGHT = 2


def place_one_by_one(
    schedule: Schedule, timeline: Timeline, peers: Sequence[int]
) -> list[tuple[Instruction, ...]]:
    """The instructions of every stage of one replica, placed one pass after the other."""
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


def placed(schedule: Schedule, durations_ms: Sequence[Sequence[float]]) -> list[RankPlan]:
    timeline = timeline_of(schedule, durations_ms)
    instructions = place_transfers(schedule, timeline, range(len(schedule.passes)))
    return plans_of(instructions, n_microbatches_of(schedule))


def test_transfers_start_where_tensors_are_produced_and_end_where_they_are_needed() -> None:
    plans = placed(parse_schedule("F0 B0 \n F0 B0"), [[1, 2], [1, 2]])
    assert grid(plans).splitlines() == [
        "rank 0 | L0 F0 a0>1 g0<1@0 g0<! a0>! B0 reduce step",
        "rank 1 | a0<0@0 L0 a0<! F0 B0 g0>0 g0>! reduce step",
    ]
    check_plans(plans)


def test_a_receive_comes_before_the_pass_that_runs_when_the_tensor_is_produced() -> None:
    # Activation 1 is there at 2 ms, while rank 1 runs F0 from 1 to 4 ms.
    plans = placed(parse_schedule("F0 F1 B0 B1 \n F0 B0 F1 B1"), [[1, 1, 2, 2], [3, 2, 3, 2]])
    assert grid(plans).splitlines()[1].startswith("rank 1 | a0<0@0 a1<0@1 L0 a0<! F0 B0 g0>0 L1")
    check_plans(plans)


@given(drawn_schedules())
def test_passes_that_end_together_come_behind_those_they_depend_on(schedule: Schedule) -> None:
    check_plans(placed(schedule, [[0.0] * len(row) for row in schedule.passes]))


def test_an_order_with_a_deadlock_is_refused() -> None:
    codes, end_ms = np.array([[1, 0], [0, 1]], np.int32), np.zeros((2, 2))
    with pytest.raises(ValueError, match="the order of the passes has a deadlock"):
        _kernels.place_transfers(codes, end_ms, np.array([0, 1], np.uint32))


@given(st.data())
def test_the_kernel_places_as_one_by_one(data: st.DataObject) -> None:
    schedule = data.draw(drawn_schedules())
    timeline = data.draw(drawn_timelines(schedule))
    peers = [3 * stage + 5 for stage in range(len(schedule.passes))]
    one_by_one = place_one_by_one(schedule, timeline, peers)
    assert list(map(tuple, place_transfers(schedule, timeline, peers))) == one_by_one


@pytest.mark.parametrize(
    "rule", dict.fromkeys((*RULES.values(), *SPLIT_RULES.values())), ids=name_of
)
@given(drawn_costs())
def test_a_simulated_schedule_becomes_plans_with_the_simulated_memory(
    rule: ScheduleRule, drawn: StageCosts
) -> None:
    costs = with_columns(drawn, forward_ms=drawn.forward_ms + 1, backward_ms=drawn.backward_ms + 1)
    schedule = rule(costs, no_limit(costs))
    static_bytes = np.arange(costs.n_stages, dtype=np.float64)
    timeline = simulate(schedule, costs, Link(latency_ms=0.5, bytes_per_ms=100), static_bytes)
    rows = place_transfers(schedule, timeline, range(costs.n_stages))
    plans = [
        replace(plan, memory=memory_plan(costs, stage, timeline))
        for stage, plan in enumerate(plans_of(rows, costs.n_microbatches))
    ]
    check_plans(plans)
    assert list(map(peak_bytes, plans)) == timeline.peak_bytes.tolist()


def memory_plan(costs: StageCosts, stage: int, timeline: Timeline) -> MemoryPlan:
    stored, forward, backward = (
        tuple(map(int, column[:, stage]))
        for column in (
            costs.stored_bytes,
            costs.forward_transient_bytes,
            costs.backward_transient_bytes,
        )
    )
    return MemoryPlan(int(timeline.peak_bytes[stage]), stage, stored, forward, backward)
