"""Plans of random schedules, and random changes to them."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from tests.examples.example_plans import (
    Groups,
    StagePass,
    inputs_of,
    plans_of,
    rows_of,
    with_tight_memory,
)
from tests.examples.stage_costs import schedule_of

from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch
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
from dynapipe_hpc.plan.rank_plan import MemoryPlan, RankPlan
from dynapipe_hpc.planner.make_plans import place_transfers
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule
from dynapipe_hpc.planner.schedule.simulate import Timeline

Instructions = list[Instruction]
_COMPUTING: Sequence[Callable[[int], Instruction]] = (
    Load,
    Forward,
    Backward,
    BackwardInput,
    BackwardWeight,
)


def random_replicas(draw: random.Random) -> list[list[RankPlan]]:
    """The plans of 1 to 3 replicas of up to 6 stages, by stage; memory is tight."""
    n_stages = draw.randint(1, 6)
    kinds = tuple(PassKind)[: draw.choice([1, 2, 3])]
    return [
        _random_pipeline(draw, replica, n_stages, draw.randint(len(kinds) == 1, 7), kinds)
        for replica in range(draw.choice([1, 1, 2, 3]))
    ]


def _random_pipeline(
    draw: random.Random, replica: int, n_stages: int, n_microbatches: int, kinds: Sequence[PassKind]
) -> list[RankPlan]:
    groups = _random_groups(draw, n_microbatches)
    schedule, timeline = _random_schedule(draw, n_stages, n_microbatches, kinds, groups)
    ranks = range(replica * n_stages, (replica + 1) * n_stages)
    rows = place_transfers(schedule, timeline, ranks)
    plans = [
        replace(
            plan,
            rank=rank,
            replica=replica,
            microbatches=tuple(_of_replica(m, replica) for m in plan.microbatches),
            memory=_random_memory(draw, plan),
        )
        for rank, plan in zip(ranks, plans_of(rows, n_microbatches, groups), strict=True)
    ]
    return with_tight_memory(plans)


def _of_replica(microbatch: MicroBatch, replica: int) -> MicroBatch:
    """The same of samples that no other replica has."""
    assert not isinstance(microbatch, DenseRows)
    sample_ids = tuple(1000 * replica + sample for sample in microbatch.sample_ids)
    return replace(microbatch, sample_ids=sample_ids)


def _random_memory(draw: random.Random, plan: RankPlan) -> MemoryPlan:
    n = len(plan.microbatches)
    sizes = (tuple(draw.choice([0, 1, 7, 10**12]) for _ in range(n)) for _ in range(3))
    return MemoryPlan(0, draw.choice([0, 100]), *sizes)


def _random_groups(draw: random.Random, n_microbatches: int) -> Groups:
    """Micro-batches that hold the slices of up to two samples, in any order; often none."""
    indices = draw.sample(range(n_microbatches), n_microbatches)
    cut = draw.randint(0, n_microbatches)
    groups = draw.choice([[], [indices[:cut]], [indices[:cut], indices[cut:]]])
    return [group for group in groups if len(group) > 1]


def _random_schedule(
    draw: random.Random,
    n_stages: int,
    n_microbatches: int,
    kinds: Sequence[PassKind],
    groups: Groups,
) -> tuple[Schedule, Timeline]:
    """Any order in which the passes can run, and times that often coincide."""
    pairs = [(kind, i) for kind in kinds for i in range(n_microbatches)]
    needs = {
        (s, Pass(*pair)): inputs_of(s, Pass(*pair), n_stages, groups)
        for s in range(n_stages)
        for pair in pairs
    }
    passes: list[list[Pass]] = [[] for _ in range(n_stages)]
    ends_ms: list[list[float]] = [[] for _ in range(n_stages)]
    end_of = dict[StagePass, float]()
    while needs:
        chosen = draw.choice([p for p, inputs in needs.items() if end_of.keys() >= {*inputs}])
        stage, pass_ = chosen
        free_ms = ends_ms[stage][-1] if ends_ms[stage] else 0.0
        begin_ms = max([free_ms, *(end_of[p] for p in needs.pop(chosen))])
        end_of[chosen] = begin_ms + draw.choice([1.0, 1.0, 2.0, 7.5])
        passes[stage].append(pass_)
        ends_ms[stage].append(end_of[chosen])
    end_ms = np.array(ends_ms).reshape(n_stages, -1)
    nothing, per_stage = np.full(end_ms.shape, np.nan), np.zeros(n_stages)
    makespan_ms = float(end_ms.max(initial=0.0))
    timeline = Timeline(nothing, end_ms, nothing, nothing, per_stage, per_stage, makespan_ms)
    return schedule_of(passes), timeline


def changed(draw: random.Random, plans: list[RankPlan]) -> tuple[str, list[RankPlan]]:
    """The plans of a replica with one change, or a few of one kind, and its name."""
    name = draw.choice([*CHANGES, "less memory"])
    plans = list(plans)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        stage = draw.randrange(len(plans))
        plan = plans[stage]
        if name == "less memory":
            memory = replace(plan.memory, limit=max(plan.memory.limit - 1, 0))
            plans[stage] = replace(plan, memory=memory)
        else:
            instructions = list(plan.instructions)
            if instructions:
                CHANGES[name](draw, instructions)
            plans[stage] = replace(plan, instructions=rows_of(instructions))
    return name, plans


def _reorder_slices(draw: random.Random, row: Instructions) -> None:
    passes = Forward | Backward | BackwardInput
    places = [k for k, step in enumerate(row) if isinstance(step, passes)]
    if places:
        _swap_places(row, draw.choice(places), draw.choice(places))


def _drop(draw: random.Random, row: Instructions) -> None:
    del row[draw.randrange(len(row))]


def _repeat(draw: random.Random, row: Instructions) -> None:
    row.insert(draw.randrange(len(row)), draw.choice(row))


def _move(draw: random.Random, row: Instructions) -> None:
    moved = row.pop(draw.randrange(len(row)))
    row.insert(draw.randint(0, len(row)), moved)


def _swap(draw: random.Random, row: Instructions) -> None:
    _swap_places(row, draw.randrange(len(row)), draw.randrange(len(row)))


def _swap_neighbours(draw: random.Random, row: Instructions) -> None:
    place = draw.randrange(len(row))
    _swap_places(row, place, max(place - 1, 0))


def _reorder_pair(draw: random.Random, row: Instructions) -> None:
    starts = [k for k, step in enumerate(row) if isinstance(step, StartSend | StartReceive)]
    if starts:
        _swap_places(row, draw.choice(starts), draw.choice(starts))


def _swap_places(row: Instructions, one: int, other: int) -> None:
    row[one], row[other] = row[other], row[one]


def _change_microbatch(draw: random.Random, row: Instructions) -> None:
    place = draw.randrange(len(row))
    step = row[place]
    if not isinstance(step, ReduceGradients | StepOptimizer):
        row[place] = replace(step, microbatch=max(step.microbatch + draw.choice([-1, 1]), 0))


def _change_kind(draw: random.Random, row: Instructions) -> None:
    place = draw.randrange(len(row))
    match row[place]:
        case Load(i) | Forward(i) | Backward(i) | BackwardInput(i) | BackwardWeight(i):
            row[place] = draw.choice(_COMPUTING)(i)
        case StartSend(i, payload, peer) | StartReceive(i, payload, peer):
            send, receive = StartSend(i, payload, peer), StartReceive(i, payload, peer, slot=0)
            row[place] = receive if row[place] == send else send
        case WaitSend(i, payload) | WaitReceive(i, payload):
            send_over, received = WaitSend(i, payload), WaitReceive(i, payload)
            row[place] = received if row[place] == send_over else send_over


def _change_payload(draw: random.Random, row: Instructions) -> None:
    transfers = StartSend | StartReceive | WaitSend | WaitReceive
    places = [(k, step) for k, step in enumerate(row) if isinstance(step, transfers)]
    if places:
        place, step = draw.choice(places)
        row[place] = replace(step, payload=Payload(1 - step.payload))


def _change_peer(draw: random.Random, row: Instructions) -> None:
    starts = [(k, step) for k, step in enumerate(row) if isinstance(step, StartSend | StartReceive)]
    if starts:
        place, step = draw.choice(starts)
        row[place] = replace(step, peer=max(step.peer + draw.choice([-2, -1, 1, 2]), 0))


def _change_slot(draw: random.Random, row: Instructions) -> None:
    receives = [(k, step) for k, step in enumerate(row) if isinstance(step, StartReceive)]
    if receives:
        place, step = draw.choice(receives)
        row[place] = replace(step, slot=max(step.slot + draw.choice([-2, -1, 1, 2]), 0))


CHANGES: Mapping[str, Callable[[random.Random, Instructions], None]] = {
    "drop": _drop,
    "repeat": _repeat,
    "move": _move,
    "swap": _swap,
    "swap neighbours": _swap_neighbours,
    "reorder a pair": _reorder_pair,
    "reorder slices": _reorder_slices,
    "micro-batch": _change_microbatch,
    "kind": _change_kind,
    "payload": _change_payload,
    "peer": _change_peer,
    "slot": _change_slot,
}
