"""Rounds of measurements of stacks of layers over a grid of micro-batches."""

import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.experiment.profile.agreeing_shards import OutOfMemoryError
from dynapipe_hpc.experiment.profile.stack import Stack
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.cost.cost_model import FloatArray

MIN_ROUNDS, MAX_ROUNDS = 2, 8

OnProgress = Callable[[float], None]
Measure = Callable[[Stack, MicroBatch], tuple[float, ...]]

WHOLE: tuple[Measure, ...] = (Stack.times_ms,)
"""Measurements of a round where plans keep backward passes whole."""

SPLIT: tuple[Measure, ...] = (Stack.times_ms, Stack.halves_ms)
"""Measurements of a round where plans may split them, of a micro-batch one after the other."""


class Rounds(NamedTuple):
    """Result of `measure_rounds`: number of micro-batches that fitted, and their typical costs."""

    n_microbatches: int
    costs: FloatArray


def measure_rounds(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    *,
    repetition_s: float,
    on_progress: OnProgress,
    measures: Sequence[Measure] = WHOLE,
) -> Rounds:
    """Measures every micro-batch several times, the same on all ranks at a time (collective).

    Whole rounds over all micro-batches, smallest first, are repeated rather than single
    measurements, so that a temporary disturbance of the machine spreads over all of them. The first
    micro-batch that runs out of memory on any rank is left out, with all after it.

    Returns:
        Costs have shape (n_microbatches, n_stacks, 5 or 7) on the first rank, and are empty
        elsewhere.

    Raises:
        RunError: No micro-batch fits into memory.
    """
    start_s = time.perf_counter()
    # Assumes the largest number of rounds, so that progress never goes backwards.
    part = share_of(on_progress, 0, 1 + MAX_ROUNDS)
    memory = _round(job, stacks, (Stack.memory,), microbatches, on_progress=part)
    n = len(memory)
    if not n:
        raise RunError(
            f"not even the smallest micro-batch, of {microbatches[0].padded_tokens} padded tokens, "
            "fits into memory; use a device with more memory, or a smaller model"
        )
    n_affordable = int(repetition_s / len(measures) / (time.perf_counter() - start_s))
    n_rounds = job.broadcast(min(MAX_ROUNDS, max(MIN_ROUNDS, n_affordable)))
    times_ms: list[FloatArray] = []
    for k in range(n_rounds):
        part = share_of(on_progress, 1 + k, 1 + n_rounds)
        times_ms.append(_round(job, stacks, measures, microbatches[:n], on_progress=part))
        n = len(times_ms[-1])
    of_ranks = job.gather((memory[:n], np.stack([of_round[:n] for of_round in times_ms])))
    if not of_ranks:
        return Rounds(n, np.zeros(0))
    of_memory, of_times = (np.array(each) for each in zip(*of_ranks, strict=True))
    return Rounds(n, typical_costs(of_memory, of_times))


def typical_costs(memory: FloatArray, times_ms: FloatArray) -> FloatArray:
    """Typical costs for `separate_layers`, shape (n_microbatches, n_stacks, 5 or 7).

    The median over rounds is typical: a run is disturbed as often as its profile. What a forward
    pass takes longer before a split backward pass counts with that.

    Args:
        memory: Fields of `StackMemory`, shape (n_ranks, n_microbatches, n_stacks, 3).
        times_ms: Fields of `StackTimes`, shape (n_ranks, n_rounds, n_microbatches, n_stacks, 2),
            or 5 with those of `StackHalves`.
    """
    by_rank = np.median(times_ms, axis=1)
    # The last three are of split passes, if these were measured.
    whole, halves = by_rank[..., :2], by_rank[..., 3:]
    halves[..., :1] += by_rank[..., 2:3] - by_rank[..., :1]
    typical: FloatArray = np.median(np.concatenate([whole, memory, halves], axis=-1), axis=0)
    return typical


def share_of(on_progress: OnProgress, n_done: int, n_parts: int) -> OnProgress:
    """Maps the progress of one part to that of all."""
    return lambda share: on_progress((n_done + share) / n_parts)


def _round(
    job: Job,
    stacks: Sequence[Stack],
    measures: Sequence[Measure],
    microbatches: Sequence[MicroBatch],
    *,
    on_progress: OnProgress,
) -> FloatArray:
    measured: list[list[tuple[float, ...]]] = []
    n_tokens = sum(microbatch.padded_tokens for microbatch in microbatches)
    n_done = 0
    for microbatch in microbatches:
        costs = _on_all(stacks, measures, microbatch)
        # The all-reduce also keeps the ranks in step.
        if job.comm.allreduce(not costs):
            break
        measured.append(costs)
        n_done += microbatch.padded_tokens
        on_progress(n_done / n_tokens)
    return np.array(measured)


def _on_all(
    stacks: Sequence[Stack], measures: Sequence[Measure], microbatch: MicroBatch
) -> list[tuple[float, ...]]:
    """Measurements of every stack; an empty list if one of them runs out of memory."""
    try:
        measurements = [[measure(stack, microbatch) for stack in stacks] for measure in measures]
        return [tuple(chain(*of_stack)) for of_stack in zip(*measurements, strict=True)]
    except OutOfMemoryError:
        return []
