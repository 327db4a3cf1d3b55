"""Measures stacks of layers over a grid of micro-batches, round after round."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.profile_stack import OutOfMemoryError, Stack, StackCost
from dynapipe_hpc.planner.cost.cost_model import FloatArray

MIN_ROUNDS, MAX_ROUNDS = 2, 8

OnProgress = Callable[[float], None]


def measure_rounds(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    repetition_s: float,
    on_progress: OnProgress,
) -> FloatArray:
    """Measures every micro-batch several times; all ranks together, the same at a time.

    Rounds over all micro-batches are repeated rather than single ones, so that what disturbs
    the machine for a while spreads over all of them.

    Args:
        job: The ranks.
        stacks: What to measure.
        microbatches: Smallest first; from the first on that runs out of memory on any rank,
            they are left out.
        repetition_s: Time for the rounds after the first, which only warms up.
        on_progress: Called with the share that is done.

    Returns:
        Array of shape (n_rounds, n_microbatches, n_stacks, 3): forward ms, backward ms and
        stored bytes.
    """
    start_s = time.perf_counter()
    rounds = [_round(job, stacks, microbatches, _Progress(on_progress, 0, 1 + MIN_ROUNDS))]
    round_s = job.broadcast(time.perf_counter() - start_s)
    n_rounds = 1 + min(MAX_ROUNDS, max(MIN_ROUNDS, int(repetition_s / round_s)))
    for k in range(1, n_rounds):
        feasible = microbatches[: len(rounds[-1])]
        rounds.append(_round(job, stacks, feasible, _Progress(on_progress, k, n_rounds)))
    return np.stack([measured[: len(rounds[-1])] for measured in rounds[1:]])


@dataclass(frozen=True, slots=True)
class _Progress:
    """Maps the progress of one round to that of all."""

    on_progress: OnProgress
    n_done: int
    n_rounds: int

    def __call__(self, share: float) -> None:
        self.on_progress((self.n_done + share) / self.n_rounds)


def _round(
    job: Job, stacks: Sequence[Stack], microbatches: Sequence[MicroBatch], on_progress: OnProgress
) -> FloatArray:
    measured: list[list[StackCost]] = []
    n_tokens = sum(microbatch.padded_tokens for microbatch in microbatches)
    n_done = 0
    for microbatch in microbatches:
        costs = _measure(stacks, microbatch)
        # Also keeps the ranks side by side.
        if job.comm.allreduce(not costs):
            break
        measured.append(costs)
        n_done += microbatch.padded_tokens
        on_progress(n_done / n_tokens)
    return np.array(measured)


def _measure(stacks: Sequence[Stack], microbatch: MicroBatch) -> list[StackCost]:
    """The cost on every stack; none if one of them runs out of memory."""
    try:
        return [stack.run(microbatch) for stack in stacks]
    except OutOfMemoryError:
        return []
