"""Places of sends, receives and waits, as pictures and as rules."""

from collections import defaultdict
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
from dynapipe_hpc.planner.schedule.schedule_rule import PassKind, Schedule, ScheduleRule
from dynapipe_hpc.planner.schedule.simulate import Timeline, simulate

ACTIVATION, GRADIENT = Payload.ACTIVATION, Payload.GRADIENT


def steps_of(
    stage: int, schedule: Schedule, timeline: Timeline, peers: Sequence[int]
) -> Iterator[Instruction]:
    """A stage's instructions, all slots 0, but for waits for the last tensors that leave it."""
    before, _, behind = [None, *peers, None][stage : stage + 3]
    ends = sorted(
        (end_ms, of_stage, k)
        for of_stage, row in enumerate(timeline.end_ms.tolist())
        for k, end_ms in enumerate(row)
    )
    for _, of_stage, k in ends:
        kind, i = schedule.passes[of_stage][k]
        match kind, of_stage - stage:
            case PassKind.FORWARD, 0:
                yield Load(i)
                yield from [WaitReceive(i, ACTIVATION)] if before is not None else []
                yield Forward(i)
                yield from [StartSend(i, ACTIVATION, behind)] if behind is not None else []
            case PassKind.BACKWARD, 0:
                if behind is not None:
                    yield from (WaitReceive(i, GRADIENT), WaitSend(i, ACTIVATION))
                yield BackwardInput(i) if splits_backward(schedule) else Backward(i)
                yield from [StartSend(i, GRADIENT, before)] if before is not None else []
            case PassKind.WEIGHT, 0:
                yield BackwardWeight(i)
            case PassKind.FORWARD, -1:
                yield StartReceive(i, ACTIVATION, peers[of_stage], 0)
            case PassKind.BACKWARD, 1:
                yield StartReceive(i, GRADIENT, peers[of_stage], 0)


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
def test_transfers_follow_the_ends_of_passes_and_take_few_slots_and_sends(
    data: st.DataObject,
) -> None:
    schedule = data.draw(drawn_schedules())
    timeline = data.draw(drawn_timelines(schedule))
    peers = [3 * stage + 5 for stage in range(len(schedule.passes))]
    only_forward = {kind for row in schedule.passes for kind, _ in row} == {PassKind.FORWARD}
    last_sent = ACTIVATION if only_forward else GRADIENT
    last_pass = BackwardWeight if splits_backward(schedule) else Backward
    for stage, row in enumerate(place_transfers(schedule, timeline, peers)):
        free, held, n_sent = set(range(len(row))), defaultdict[int, set[int]](set), 0
        found: list[Instruction] = []
        for step in row:
            found.append(step)
            match step:
                case StartReceive(i, slot=slot):
                    assert slot == min(free)
                    free.remove(slot)
                    held[i].add(slot)
                    found[-1] = replace(step, slot=0)
                case StartSend(payload=payload) if payload is last_sent:
                    n_sent += 1
                    assert n_sent <= 2
                case WaitSend(payload=payload) if payload is last_sent:
                    n_sent -= 1
                    found.pop()
                case Forward(i) | Backward(i) | BackwardWeight(i):
                    if isinstance(step, Forward if only_forward else last_pass):
                        free |= held.pop(i, set())
        update = [] if only_forward else [ReduceGradients(), StepOptimizer()]
        assert found == [*steps_of(stage, schedule, timeline, peers), *update]
        assert n_sent == 0


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
