"""Preprocessing with all ranks of a job: the first reads and writes, and all tokenize."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from signal import Signals

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.text.open_lines import STDIN, Lines
from dynapipe_hpc.data.text.preprocess import (
    OnProgress,
    PreprocessOptions,
    PreprocessTotals,
    check_files,
    write_dataset,
)
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import TokenizedLines, TokenizePool, open_pool
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import STARTED

ROUND_BYTES = 1 << 20
"""Text per worker process and round: several blocks, so that workers seldom wait for others."""

Answer = list[TokenizedLines] | Exception
"""Samples of the blocks of a rank, or the error that the first rank raises in its place."""


def preprocess_together(
    job: Job,
    sources: Sequence[Path],
    output: Path,
    recipe: Recipe,
    *,
    options: PreprocessOptions,
    on_progress: OnProgress = lambda *_: None,
) -> PreprocessTotals:
    """Tokenizes the lines of all sources into one dataset, as `preprocess` does (collective).

    Returns the counts; only on the first rank are they the counts of the dataset.
    """

    def check() -> None:
        if STDIN in sources:
            raise InputError(
                "standard input: launchers may lose some of it; run dynapipe-hpc preprocess "
                "without mpiexec or srun"
            )
        check_files(sources, output, force=options.force)

    job.on_first(check)
    # If their number is not configured, this rank has as many worker processes as its share of the
    # cores that it may run on, which it shares with the other ranks of its host.
    cores, host = sorted(os.sched_getaffinity(0)), job.on_this_host()
    n_sharing = host.broadcast(host.gather(cores)).count(cores)
    host.free()
    n_workers = options.n_workers or max(1, min(STARTED.n_cores, len(cores) // n_sharing))
    totals = PreprocessTotals()
    with ExitStack() as stack, job.stop.observed():
        with job.fail_together():
            pool = stack.enter_context(open_pool(recipe, n_workers))
        round_bytes = int(job.all_reduce_sum([n_workers])[0]) * ROUND_BYTES

        def tokenize(blocks: Iterable[Lines]) -> Iterator[TokenizedLines]:
            for taken in _rounds(blocks, round_bytes):
                yield from _on_all_ranks(job, pool, taken)

        with job.fail_together():
            if job.is_first:
                try:
                    totals = write_dataset(
                        sources, output, recipe, options, pool=tokenize, on_progress=on_progress
                    )
                finally:
                    for rank in range(1, job.size):
                        job.comm.send(None, rank)
            else:
                while (blocks := job.comm.recv(source=0)) is not None:
                    job.comm.send(_answer(job, pool, blocks), 0)
    return totals


def _rounds(blocks: Iterable[Lines], n_bytes: int) -> Iterator[list[Lines]]:
    """Lists of consecutive blocks, of about `n_bytes` per list."""
    taken: list[Lines] = []
    n_taken = 0
    for lines in blocks:
        taken.append(lines)
        n_taken += lines.n_bytes
        if n_taken >= n_bytes:
            yield taken
            taken, n_taken = [], 0
    if taken:
        yield taken


def _on_all_ranks(job: Job, pool: TokenizePool, blocks: list[Lines]) -> list[TokenizedLines]:
    """Tokenizes blocks; each rank gets consecutive blocks.

    All answers are received before an error is raised, so that no rank is left sending one.
    """
    n_each = -(-len(blocks) // job.size)
    own_blocks, *others = (blocks[n_each * k : n_each * (k + 1)] for k in range(job.size))
    for rank, of_rank in enumerate(others, start=1):
        job.comm.send(of_rank, rank)
    answers = [_answer(job, pool, own_blocks)]
    answers += [job.comm.recv(source=rank) for rank in range(1, job.size)]
    made: list[TokenizedLines] = []
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        made += answer
    return made


def _answer(job: Job, pool: TokenizePool, blocks: Iterable[Lines]) -> Answer:
    made = []
    try:
        for tokenized in pool(blocks):
            made.append(tokenized)
            if job.stop.asked:
                return RunError(f"stopped by {Signals(job.stop.asked).name}; nothing is written")
    except (InputError, RunError, OSError) as error:
        return error
    return made
