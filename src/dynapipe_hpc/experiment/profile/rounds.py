"""Rounds of measurements of stacks of layers over a grid of micro-batches."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

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


@dataclass(frozen=True, slots=True, eq=False)
class StackRounds:
    """Measurements of all ranks so far; arrays are empty except on the first rank.

    Attributes:
        n_rounds: Total number of rounds of times to measure.
        memory: Fields of `StackMemory`, shape (n_ranks, n_microbatches, n_stacks, 3).
        times_ms: Fields of `StackTimes` per round, shape (n_ranks, n_microbatches, n_stacks, 2), or
            5 with those of `StackHalves`. A round that ran out of memory has fewer micro-batches,
            and so have later ones.
    """

    n_rounds: int
    memory: FloatArray
    times_ms: tuple[FloatArray, ...] = ()

    @property
    def n_microbatches(self) -> int:
        """Number of micro-batches that fitted into memory in every round."""
        latest = self.times_ms[-1] if self.times_ms else self.memory
        return int(latest.shape[1]) if latest.size else 0

    def with_round(self, times_ms: FloatArray) -> "StackRounds":
        """A copy with one more round."""
        return replace(self, times_ms=(*self.times_ms, times_ms))

    def typical(self) -> FloatArray:
        """Typical costs for `separate_layers`, shape (n_microbatches, n_stacks, 5 or 7).

        The median over rounds is typical: a run is disturbed as often as its profile. What a
        forward pass takes longer before a split backward pass counts with that.
        """
        n = self.n_microbatches
        times_ms = np.stack([of_round[:, :n] for of_round in self.times_ms])
        by_rank = np.median(times_ms, axis=0)
        # The last three are of split passes, if these were measured.
        whole, halves = by_rank[..., :2], by_rank[..., 3:]
        halves[..., :1] += by_rank[..., 2:3] - by_rank[..., :1]
        costs: FloatArray = np.concatenate([whole, self.memory[:, :n], halves], axis=-1)
        return np.median(costs, axis=0)


def measure_rounds(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    *,
    repetition_s: float,
    on_progress: OnProgress,
    begun: StackRounds | None = None,
    measures: Sequence[Measure] = WHOLE,
) -> Iterator[StackRounds]:
    """Measures every micro-batch several times, the same on all ranks at a time (collective).

    Whole rounds over all micro-batches are repeated rather than single measurements, so that a
    temporary disturbance of the machine spreads over all of them.

    Args:
        job: The ranks.
        stacks: The stacks to measure.
        microbatches: The micro-batches, smallest first; the first that runs out of memory on any
            rank is left out, with all after it.
        repetition_s: Time for the rounds after the first, which measures memory and warms up.
        on_progress: Callback that takes the share done, from 0 to 1.
        begun: Measurements yielded before, to continue from, on the first rank.
        measures: What a round of times measures.

    Yields:
        All measurements so far, before the first round of times and after each.

    Raises:
        RunError: No micro-batch fits into memory.
    """
    known = begun
    if not job.broadcast(begun is not None):
        one_s = repetition_s / len(measures)
        known = _begin(job, stacks, microbatches, repetition_s=one_s, on_progress=on_progress)
    known = known or StackRounds(0, np.zeros(0))
    yield known
    state = known.n_rounds, len(known.times_ms), known.n_microbatches
    n_rounds, n_done, n_feasible = job.broadcast(state)
    for k in range(n_done, n_rounds):
        part = share_of(on_progress, 1 + k, 1 + n_rounds)
        times_ms = _round(job, stacks, measures, microbatches[:n_feasible], on_progress=part)
        n_feasible = len(times_ms)
        known = known.with_round(np.array(job.gather(times_ms)))
        yield known


def share_of(on_progress: OnProgress, n_done: int, n_parts: int) -> OnProgress:
    """Maps the progress of one part to that of all."""
    return lambda share: on_progress((n_done + share) / n_parts)


def _begin(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    *,
    repetition_s: float,
    on_progress: OnProgress,
) -> StackRounds:
    """Measures memory, and derives the number of rounds from the time that this took."""
    start_s = time.perf_counter()
    # Assumes the largest number of rounds, so that progress never goes backwards.
    part = share_of(on_progress, 0, 1 + MAX_ROUNDS)
    memory = _round(job, stacks, (Stack.memory,), microbatches, on_progress=part)
    if not len(memory):
        raise RunError(
            f"not even the smallest micro-batch, of {microbatches[0].padded_tokens} padded tokens, "
            "fits into memory; use a device with more memory, or a smaller model"
        )
    n_affordable = int(repetition_s / (time.perf_counter() - start_s))
    n_rounds = job.broadcast(min(MAX_ROUNDS, max(MIN_ROUNDS, n_affordable)))
    return StackRounds(n_rounds, np.array(job.gather(memory)))


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
