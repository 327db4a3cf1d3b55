"""Check of an iteration's plans before any rank executes them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain, islice, pairwise
from typing import NamedTuple, assert_never

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Slice
from dynapipe_hpc.plan.instruction import Instruction, StartReceive, StartSend
from dynapipe_hpc.plan.rank_plan import RankPlan, rank_lines, symbol

_AROUND = 6


class PlanError(ValueError):
    """Plans would hang, run out of memory or compute something else if executed."""


def excerpt(instructions: Iterable[Instruction], index: int) -> str:
    """The instructions around an index, as text with brackets around the one at that index.

    An index after the last instruction shows the end, with empty brackets.
    """
    first, end = max(index - _AROUND, 0), index + _AROUND + 1
    shown = list(islice(instructions, first, end + 1))
    symbols = [*map(symbol, shown[: end - first]), ""]
    symbols[index - first] = f"[{symbols[index - first]}]"
    before = ["..."] if first > 0 else []
    after = ["..."] if len(shown) > end - first else []
    return " ".join([*before, *filter(None, symbols), *after])


def picture(excerpts: Mapping[int, str]) -> str:
    """Excerpts by rank, one per line, to follow a message that ends with a colon."""
    return "".join(f"\n  {line}" for line in rank_lines(excerpts))


# Symbols of plan text without numbers, in the order of the kernel's steps.
_STEPS = ("L", "a<", "a<!", "F", "a>", "a>!", "g<", "g<!", "B", "I", "W", "g>", "g>!")


class Rule(IntEnum):
    """Rules by the kernel's numbers; cpp/include/dynapipe/plan/check_pipeline.hpp defines them."""

    ENDING = 0
    PLACE = 1
    MICROBATCH = 2
    ONCE = 3
    NEEDS = 4
    PEER = 5
    SPLIT = 6
    SLOT = 7
    MEMORY = 8
    PAIR_ORDER = 9


class Fault(NamedTuple):
    """A broken rule that the kernel found in the plans of a replica."""

    rule: int
    stage: int  # stage of the plan; for PAIR_ORDER, the first of two neighbours
    position: int  # index of the instruction; for PAIR_ORDER, of the transfer between the two
    microbatch: int
    detail: int  # missing step (NEEDS), correct peer (PEER) or peak in bytes (MEMORY)


def describe(pipeline: Sequence[RankPlan], fault: Fault) -> str:
    """A message that says which rule a replica's plans (by stage) break, and where."""
    plan = pipeline[fault.stage]
    where = f"iteration {plan.iteration}: rank {plan.rank}"
    match rule := Rule(fault.rule):
        case Rule.PAIR_ORDER:
            return f"iteration {plan.iteration}: {_disagreement(pipeline, fault)}"
        case Rule.MEMORY:
            limit = plan.memory.limit
            return f"{where} needs {fault.detail} bytes at its peak, but may use {limit}"
        case Rule.ENDING:
            problem = "a plan must end with reduce and step, in this order"
        case Rule.PLACE:
            problem = "this is not allowed here"
        case Rule.MICROBATCH:
            problem = f"there are only {len(plan.microbatches)} micro-batches"
        case Rule.ONCE:
            problem = "this comes a second time"
        case Rule.NEEDS:
            step = _STEPS[fault.detail]
            problem = f"this needs {step[0]}{fault.microbatch}{step[1:]} before"
        case Rule.PEER:
            problem = f"the peer must be rank {fault.detail}"
        case Rule.SPLIT:
            problem = "a plan must split all backward passes of its rank or none"
        case Rule.SLOT:
            slot = plan.instructions.table[fault.position, -1]
            problem = f"slot {slot} is in use until {_last_pass(plan)}{fault.microbatch}"
        case _:
            assert_never(rule)
    shown = picture({plan.rank: excerpt(plan.instructions, fault.position)})
    return f"{where}: {problem}:{shown}"


def _last_pass(plan: RankPlan) -> str:
    if plan.is_forward_only:
        return "F"
    return "W" if plan.splits_backward else "B"


def _disagreement(pipeline: Sequence[RankPlan], fault: Fault) -> str:
    one, other = pipeline[fault.stage : fault.stage + 2]
    shown = {
        plan.rank: excerpt(_transfers_with(peer.rank, plan), fault.position)
        for plan, peer in sorted([(one, other), (other, one)], key=lambda pair: pair[0].rank)
    }
    ranks = " and ".join(map(str, shown))
    return f"ranks {ranks} disagree on transfer {fault.position} between them:{picture(shown)}"


def _transfers_with(peer: int, plan: RankPlan) -> list[StartSend | StartReceive]:
    starts = (step for step in plan.instructions if isinstance(step, StartSend | StartReceive))
    return [start for start in starts if start.peer == peer]


def check_plans(plans: Sequence[RankPlan]) -> None:
    """Checks that the plans of all ranks, executed together, terminate and compute the iteration.

    All plans belong to one iteration, and the stages of a replica form one pipeline over the same
    micro-batches. On each rank, every micro-batch takes every step once and after the steps that
    it depends on, peers are the neighbouring stages, a receive slot has one user at a time, and
    memory stays within its limit. No sample occurs twice. The slices of a sample make up the
    complete sample, on one replica; their forward passes run in ascending order, their backward
    passes in descending order. No two ranks disagree on the order of their transfers, and no
    rank waits forever if transfers behave like NCCL's, even if every start of one blocks until the
    peer starts it, too. The time is linear in the number of instructions. Plans of an evaluation
    have forward passes only, on all ranks.

    Args:
        plans: Plans of all ranks of an iteration, in any order.

    Raises:
        PlanError: A rule is broken; the message shows the ranks and the instructions.

    Source:
        DynaPipe paper, section "Communication Planning", which argues that its plans cannot
        deadlock; here every plan is checked.
    """
    if len(iterations := {plan.iteration for plan in plans}) > 1:
        raise PlanError(f"the plans belong to different iterations: {sorted(iterations)}")
    if len({plan.rank for plan in plans}) < len(plans):
        raise PlanError(f"a rank has two plans: {sorted(plan.rank for plan in plans)}")
    pipelines = [_pipeline(plans, replica) for replica in sorted({p.replica for p in plans})]
    if len({len(pipeline) for pipeline in pipelines}) > 1:
        raise PlanError(f"the replicas differ in stages: {[len(p) for p in pipelines]}")
    for pipeline in pipelines:
        _check_pipeline(pipeline)
    trains = [not pipeline[0].is_forward_only for pipeline in pipelines]
    if len(set(trains)) > 1:
        raise PlanError(
            f"iteration {plans[0].iteration}: replica {trains.index(True)} has backward passes, "
            f"but replica {trains.index(False)} has only forward passes"
        )
    _check_samples(pipelines)


def _pipeline(plans: Iterable[RankPlan], replica: int) -> list[RankPlan]:
    pipeline = sorted((p for p in plans if p.replica == replica), key=lambda p: p.stage)
    stages = [plan.stage for plan in pipeline]
    if stages != list(range(len(pipeline))):
        raise PlanError(f"replica {replica} has plans for stages {stages}, some missing or twice")
    return pipeline


def _check_pipeline(pipeline: Sequence[RankPlan]) -> None:
    first = pipeline[0]
    for plan in pipeline:
        if _sizes(plan) != _sizes(first):
            raise PlanError(
                f"iteration {plan.iteration}: ranks {first.rank} and {plan.rank} hold stages of "
                f"replica {plan.replica} but differ in micro-batches, hidden size or the number of "
                "shards that divide tokens"
            )
    earlier = _earlier_slices(first)
    fault = _kernels.check_pipeline(
        [plan.instructions.table for plan in pipeline],
        np.array([plan.rank for plan in pipeline], np.uint32),
        np.array([plan.memory.bounds for plan in pipeline], np.int64),
        np.array([plan.memory.sizes for plan in pipeline], np.int64),
        np.array(earlier, np.uint32),
    )
    if fault is not None:
        raise PlanError(describe(pipeline, Fault(*fault)))


def _sizes(plan: RankPlan) -> tuple[tuple[MicroBatch, ...], int, int]:
    return plan.microbatches, plan.hidden_size, plan.n_stream_shards


def _earlier_slices(plan: RankPlan) -> list[int]:
    """Per micro-batch, the one with the slice before; itself if it has the first slice or none."""
    slices = defaultdict[int, list[tuple[Slice, int]]](list)
    for index, microbatch in enumerate(plan.microbatches):
        if microbatch.slice:
            slices[microbatch.sample_ids[0]].append((microbatch.slice, index))
    earlier = list(range(len(plan.microbatches)))
    for sample_id, parts in slices.items():
        parts.sort()
        ends = [part.end for part, _ in parts]
        if [part.begin for part, _ in parts] != [0, *ends[:-1]] or {
            part.n_tokens for part, _ in parts
        } != {ends[-1]}:
            shown = ", ".join(f"{part.begin} to {part.end}" for part, _ in parts)
            raise PlanError(
                f"iteration {plan.iteration}: the slices of sample {sample_id} on replica "
                f"{plan.replica} are not its {parts[0][0].n_tokens} tokens, each once: {shown}"
            )
        for (_, before), (_, index) in pairwise(parts):
            earlier[index] = before
    return earlier


def _check_samples(pipelines: Sequence[Sequence[RankPlan]]) -> None:
    """Raises if a sample occurs twice, other than in its slices."""
    replica_of: dict[int, int] = {}
    for plan, *_ in pipelines:
        sliced = {m.sample_ids[0] for m in plan.microbatches if m.slice}
        whole = chain.from_iterable(m.sample_ids[bool(m.slice) :] for m in plan.microbatches)
        for sample_id in chain(sliced, whole):
            if sample_id in replica_of:
                raise PlanError(
                    f"iteration {plan.iteration}: sample {sample_id} occurs twice, on replicas "
                    f"{replica_of[sample_id]} and {plan.replica}"
                )
            replica_of[sample_id] = plan.replica
