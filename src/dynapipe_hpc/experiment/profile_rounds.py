"""Measures stacks of layers over a grid of micro-batches, round after round."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.profile_stack import OutOfMemoryError, Stack
from dynapipe_hpc.planner.cost.cost_model import FloatArray

MIN_ROUNDS, MAX_ROUNDS = 2, 8

OnProgress = Callable[[float], None]
Measure = Callable[[Stack, MicroBatch], tuple[float, ...]]


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
        Array of shape (n_rounds, n_microbatches, n_stacks, 5), the fields of `StackCost`; memory
        is measured once.

    Raises:
        RunError: No micro-batch fits into memory.
    """
    start_s = time.perf_counter()
    memory = _round(
        job, stacks, Stack.memory, microbatches, share_of(on_progress, 0, 1 + MIN_ROUNDS)
    )
    if not len(memory):
        raise RunError(f"not even {microbatches[0].padded_tokens} tokens fit into memory")
    round_s = job.broadcast(time.perf_counter() - start_s)
    n_rounds = 1 + min(MAX_ROUNDS, max(MIN_ROUNDS, int(repetition_s / round_s)))
    rounds: list[FloatArray] = []
    for k in range(1, n_rounds):
        feasible = microbatches[: len(rounds[-1] if rounds else memory)]
        part = share_of(on_progress, k, n_rounds)
        rounds.append(_round(job, stacks, Stack.times_ms, feasible, part))
    n_feasible = len(rounds[-1])
    return np.stack(
        [np.concatenate([r[:n_feasible], memory[:n_feasible]], axis=-1) for r in rounds]
    )


def share_of(on_progress: OnProgress, n_done: int, n_parts: int) -> OnProgress:
    """Maps the progress of one part to that of all."""
    return lambda share: on_progress((n_done + share) / n_parts)


def _round(
    job: Job,
    stacks: Sequence[Stack],
    measure: Measure,
    microbatches: Sequence[MicroBatch],
    on_progress: OnProgress,
) -> FloatArray:
    measured: list[list[tuple[float, ...]]] = []
    n_tokens = sum(microbatch.padded_tokens for microbatch in microbatches)
    n_done = 0
    for microbatch in microbatches:
        costs = _on_all(stacks, measure, microbatch)
        # Also keeps the ranks side by side.
        if job.comm.allreduce(not costs):
            break
        measured.append(costs)
        n_done += microbatch.padded_tokens
        on_progress(n_done / n_tokens)
    return np.array(measured)


def _on_all(
    stacks: Sequence[Stack], measure: Measure, microbatch: MicroBatch
) -> list[tuple[float, ...]]:
    """What is measured on every stack; nothing if one of them runs out of memory."""
    try:
        return [measure(stack, microbatch) for stack in stacks]
    except OutOfMemoryError:
        return []
