"""Check of an iteration's plans before any rank executes them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, Slice
from dynapipe_hpc.plan.errors import PlanError
from dynapipe_hpc.plan.fault import Fault, describe
from dynapipe_hpc.plan.rank_plan import RankPlan

__all__ = ["PlanError", "check_plans"]


def check_plans(plans: Sequence[RankPlan]) -> None:
    """Checks that the plans of all ranks, executed together, terminate and compute the iteration.

    All plans belong to one iteration, and the stages of a replica form one pipeline over the same
    micro-batches. On each rank, every micro-batch takes every step once and after the steps that
    it depends on, peers are the neighbouring stages, a receive slot has one user at a time, and
    memory stays within its limit. No sample occurs twice. The slices of a sample make up the
    whole sample, on one replica; their forward passes run in ascending order, their backward passes
    in descending order. No two ranks disagree on the order of their transfers, and no
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
    """Plans of a replica, by stage."""
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
        _check_account(plan)
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
    """Sizes of the tensors between stages."""
    return plan.microbatches, plan.hidden_size, plan.n_stream_shards


def _earlier_slices(plan: RankPlan) -> list[int]:
    """Per micro-batch that with the slice before its own; itself if it has none or the first.

    Raises:
        PlanError: The slices of a sample are not the whole sample, each part once.
    """
    slices = defaultdict[int, list[tuple[Slice, int]]](list)
    for index, microbatch in enumerate(plan.microbatches):
        if isinstance(microbatch, PackedRow) and microbatch.slice:
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
    """Raises where a sample occurs twice, other than in its slices."""
    replica_of: dict[int, int] = {}
    for plan, *_ in pipelines:
        sliced = {m.sample_ids[0] for m in plan.microbatches if _is_slice(m)}
        whole = chain.from_iterable(m.sample_ids[_is_slice(m) :] for m in plan.microbatches)
        for sample_id in chain(sliced, whole):
            if sample_id in replica_of:
                raise PlanError(
                    f"iteration {plan.iteration}: sample {sample_id} occurs twice, on replicas "
                    f"{replica_of[sample_id]} and {plan.replica}"
                )
            replica_of[sample_id] = plan.replica


def _is_slice(microbatch: MicroBatch) -> bool:
    """Whether the first sample of a micro-batch is there in part."""
    return isinstance(microbatch, PackedRow) and microbatch.slice is not None


def _check_account(plan: RankPlan) -> None:
    n = len(plan.microbatches)
    n_accounted = [len(column) for column in plan.memory.sizes]
    if any(n_column != n for n_column in n_accounted):
        raise PlanError(
            f"iteration {plan.iteration}: rank {plan.rank} accounts for the memory of "
            f"{n_accounted} micro-batches, but has {n}"
        )
