"""Plans to test with: from a picture, and drawn at random."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from tests.examples.stage_costs import schedule_of

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, PaddedRows, Slice
from dynapipe_hpc.plan.instruction import (
    COLUMNS,
    KINDS,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    InstructionRows,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import MemoryPlan, PassSpans, Prediction, RankPlan, peak_bytes
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule
from dynapipe_hpc.planner.schedule.simulate import Timeline

AMPLE = 10**9
SLICE_TOKENS = 8
StagePass = tuple[int, Pass]
Groups = Sequence[Sequence[int]]
"""The micro-batches that hold the slices of each sliced sample, first slice first."""


def microbatches_of(n: int, groups: Groups = ()) -> tuple[MicroBatch, ...]:
    """Micro-batches of a sample each, and those of the slices of others."""
    microbatches: list[MicroBatch] = [PaddedRows((i,), SLICE_TOKENS) for i in range(n)]
    for group in groups:
        ends = [SLICE_TOKENS * (k + 1) for k in range(len(group))]
        for i, end in zip(group, ends, strict=True):
            part = Slice(end - SLICE_TOKENS, end, ends[-1])
            microbatches[i] = PackedRow((group[0],), SLICE_TOKENS, (0, SLICE_TOKENS), slice=part)
    return tuple(microbatches)


def plans_of(
    instructions: Iterable[Iterable[Instruction]], n_microbatches: int, groups: Groups = ()
) -> list[RankPlan]:
    """The plans of one replica; micro-batch i stores 10 + i bytes."""
    stored = tuple(10 + i for i in range(n_microbatches))
    ones = (1,) * n_microbatches
    return [
        RankPlan(
            iteration=0,
            rank=stage,
            replica=0,
            stage=stage,
            hidden_size=4,
            microbatches=microbatches_of(n_microbatches, groups),
            instructions=row if isinstance(row, InstructionRows) else rows_of(row),
            memory=MemoryPlan(AMPLE, 100, stored, ones, ones),
            prediction=Prediction(1.0, spans_of([])),
        )
        for stage, row in enumerate(instructions)
    ]


def plans_of_grid(text: str, n_microbatches: int) -> list[RankPlan]:
    """The plans of one replica from their picture, first stage first."""
    rows = parse_grid(text)
    plans = plans_of(rows.values(), n_microbatches)
    return [replace(plan, rank=rank) for plan, rank in zip(plans, rows, strict=True)]


def with_tight_memory(plans: Iterable[RankPlan]) -> list[RankPlan]:
    return [replace(p, memory=replace(p.memory, limit=peak_bytes(p))) for p in plans]


def n_microbatches_of(schedule: Schedule) -> int:
    return len({pass_.microbatch for pass_ in schedule.passes[0]})


@st.composite
def drawn_schedules(draw: st.DrawFn) -> Schedule:
    """Any order in which up to 5 micro-batches can pass through up to 4 stages."""
    n_stages, n_microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    kinds = tuple(PassKind)[: draw(st.integers(1, len(PassKind)))]
    passes = [Pass(kind, i) for kind in kinds for i in range(n_microbatches)]
    open_ = [(stage, pass_) for stage in range(n_stages) for pass_ in passes]
    done: list[StagePass] = []
    while open_:
        ready = [p for p in open_ if all(q in done for q in inputs_of(*p, n_stages))]
        done.append(draw(st.sampled_from(ready)))
        open_.remove(done[-1])
    return schedule_of([p for at, p in done if at == s] for s in range(n_stages))


_DURATIONS_MS = np.array([1.0, 2.0, 7.5])


@st.composite
def drawn_timelines(draw: st.DrawFn, schedule: Schedule) -> Timeline:
    """A schedule in time, with passes of few different lengths so that many end together."""
    n_passes = schedule.codes.size
    codes = np.frombuffer(draw(st.binary(min_size=n_passes, max_size=n_passes)), np.uint8)
    return timeline_of(schedule, _DURATIONS_MS[codes % 3].reshape(schedule.codes.shape).tolist())


def timeline_of(schedule: Schedule, duration_ms: Sequence[Sequence[float]]) -> Timeline:
    """A schedule in time if passes take these times, shape (n_stages, n_passes), links none."""
    end_of: dict[StagePass, float] = {}
    order, end_ms = schedule.passes, np.zeros(schedule.codes.shape)
    while len(end_of) < end_ms.size:
        for stage, passes in enumerate(order):
            for k, pass_ in enumerate(passes):
                needed = inputs_of(stage, pass_, len(order))
                needed += [(stage, passes[k - 1])] if k > 0 else []
                if all(p in end_of for p in needed):
                    begin_ms = max((end_of[p] for p in needed), default=0.0)
                    end_of[stage, pass_] = end_ms[stage, k] = begin_ms + duration_ms[stage][k]
    not_used, per_stage = np.full(end_ms.shape, np.nan), np.zeros(len(end_ms))
    start_ms = end_ms - np.array(duration_ms)
    return Timeline(start_ms, end_ms, not_used, not_used, per_stage, per_stage, end_ms.max())


def inputs_of(stage: int, pass_: Pass, n_stages: int, groups: Groups = ()) -> list[StagePass]:
    """The passes that a pass needs to have ended, each with its stage."""
    if pass_.kind is PassKind.WEIGHT:
        return [(stage, Pass(PassKind.BACKWARD, pass_.microbatch))]
    goes_back = pass_.kind is PassKind.BACKWARD
    pairs = [pair for group in groups for pair in pairwise(group)]
    needed = [
        (stage, Pass(pass_.kind, pair[goes_back]))
        for pair in pairs
        if pair[not goes_back] == pass_.microbatch
    ]
    if not goes_back:
        return [*needed, (stage - 1, pass_)] if stage > 0 else needed
    behind = [(stage + 1, pass_)] if stage + 1 < n_stages else []
    return [*needed, (stage, Pass(PassKind.FORWARD, pass_.microbatch)), *behind]


def rows_of(instructions: Iterable[Instruction]) -> InstructionRows:
    rows = []
    for each in instructions:
        values = [getattr(each, field) for field in type(each).__match_args__]
        rows.append([KINDS.index(type(each)), *values, *[0] * (COLUMNS - 1 - len(values))])
    return InstructionRows(np.array(rows, np.uint32).reshape(-1, COLUMNS))


def spans_of(times_ms: Iterable[tuple[float, float]]) -> PassSpans:
    """Start and end of every pass, as a simulation finds them."""
    return PassSpans(np.array(list(times_ms), np.float64).reshape(-1, 2))


_PAYLOADS = {"a": Payload.ACTIVATION, "g": Payload.GRADIENT}
_RANK = re.compile(r"\s*rank +(\d+) *\|(.*)")
_TOKEN_FORMS: tuple[tuple[str, Callable[[re.Match[str]], Instruction]], ...] = (
    (r"L(N)", lambda m: Load(int(m[1]))),
    (r"F(N)", lambda m: Forward(int(m[1]))),
    (r"B(N)", lambda m: Backward(int(m[1]))),
    (r"I(N)", lambda m: BackwardInput(int(m[1]))),
    (r"W(N)", lambda m: BackwardWeight(int(m[1]))),
    (r"([ag])(N)>(N)", lambda m: StartSend(int(m[2]), _PAYLOADS[m[1]], int(m[3]))),
    (r"([ag])(N)>!", lambda m: WaitSend(int(m[2]), _PAYLOADS[m[1]])),
    (
        r"([ag])(N)<(N)@(N)",
        lambda m: StartReceive(int(m[2]), _PAYLOADS[m[1]], int(m[3]), int(m[4])),
    ),
    (r"([ag])(N)<!", lambda m: WaitReceive(int(m[2]), _PAYLOADS[m[1]])),
    (r"reduce", lambda _: ReduceGradients()),
    (r"step", lambda _: StepOptimizer()),
)
_TOKENS = tuple(
    (re.compile(form.replace("N", "0|[1-9][0-9]*")), make) for form, make in _TOKEN_FORMS
)


def parse_grid(text: str) -> dict[int, tuple[Instruction, ...]]:
    """Instructions of every rank; empty lines are skipped."""
    instructions: dict[int, tuple[Instruction, ...]] = {}
    for line in filter(str.strip, text.splitlines()):
        match = _RANK.fullmatch(line)
        assert match and int(match[1]) not in instructions, line
        instructions[int(match[1])] = tuple(map(_parse, match[2].split()))
    return instructions


def _parse(token: str) -> Instruction:
    (found,) = [make(match) for form, make in _TOKENS if (match := form.fullmatch(token))]
    return found
