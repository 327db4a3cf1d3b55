"""Preprocessing with all ranks of a job, which continues where an earlier job stopped."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dynapipe_hpc.data.atomic_write import remove_left_over, writing
from dynapipe_hpc.data.dataset.dataset_file import verify_dataset
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter, join_datasets
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.text.preprocess import (
    PreprocessOptions,
    PreprocessTotals,
    check_dataset_output,
    header_of,
    write_parts,
)
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.shard import Shard, lay_out_shards, shard_folder, share_out
from dynapipe_hpc.data.text.tokenize_lines import open_pool
from dynapipe_hpc.job.job import Job, fail_early
from dynapipe_hpc.job.slurm import end_stopped
from dynapipe_hpc.job.world import STARTED

OnShare = Callable[[float], None]
"""Callback after every block; takes the finished share of this rank's text."""


Made = dict[str, PreprocessTotals]
"""Totals of each shard made, by fingerprint."""


def workers_of(job: Job, n_workers: int) -> int:
    """Number of worker processes on this rank (collective).

    If it is not configured, it is this rank's share of the cores that it may run on, which it
    shares with the other ranks of its host.
    """
    cores = sorted(os.sched_getaffinity(0))
    host = job.on_this_host()
    n_sharing = host.broadcast(host.gather(cores)).count(cores)
    host.free()
    return n_workers or max(1, min(STARTED.n_cores, len(cores) // n_sharing))


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """Result of a preprocessing job; totals, on the first rank, leave out what was reused."""

    n_samples: int
    n_shards: int
    n_reused: int
    totals: PreprocessTotals


def preprocess_together(
    job: Job,
    sources: Sequence[Path],
    output: Path,
    recipe: Recipe,
    *,
    options: PreprocessOptions,
    on_share: OnShare = lambda _: None,
) -> Preprocessed:
    """Tokenizes the lines of all sources into shards, and joins them into one dataset (collective).

    Every rank gets about the same amount of text. The samples are the same as from `preprocess`,
    in the same order. Intact shards of an earlier, unfinished job are reused. The dataset
    appears when it is complete; then the shards, which are kept beside it, are removed.
    """
    folder = shard_folder(output)

    def begin() -> list[Shard]:
        check_dataset_output(output, sources, options.force)
        remove_left_over(output)
        shards = lay_out_shards(sources, recipe, options.skip_bad)
        _begin(folder)
        return shards

    def join() -> int:
        parts = [folder / shard.name for shard in shards]
        n_samples = join_datasets(output, header_of(recipe, sources), parts)
        _remove(folder)
        return n_samples

    with job.stop.observed():
        shards = job.on_first(begin)
        distinct = list(dict.fromkeys(shards))  # a source may be named twice
        missing = _missing(job, folder, distinct)
        _stop_if_asked(job)
        mine = share_out(missing, job.size)[job.rank]
        options = replace(options, n_workers=workers_of(job, options.n_workers))
        with job.fail_together(), fail_early(job) as check_peers:

            def on_block(share: float) -> None:
                check_peers()
                on_share(share)

            made = _make(folder, mine, recipe, options, on_block=on_block)
        _stop_if_asked(job)
        made_by_rank = job.gather(made)
        n_samples = job.on_first(join)
    n_reused = len(distinct) - len(missing)
    return Preprocessed(n_samples, len(distinct), n_reused, _sum(distinct, made_by_rank))


def _make(
    folder: Path,
    shards: Sequence[Shard],
    recipe: Recipe,
    options: PreprocessOptions,
    *,
    on_block: OnShare,
) -> Made:
    made: Made = {}
    n_bytes = sum(shard.n_bytes for shard in shards)

    def on_progress(totals: PreprocessTotals) -> None:
        n_done = sum(done.n_bytes for done in made.values()) + totals.n_bytes
        on_block(min(1.0, n_done / n_bytes))

    try:
        with open_pool(recipe, options.n_workers) as pool:
            for shard in shards:
                header = header_of(recipe, [shard.part.path])
                # After a power cut its checksums say whether it is complete.
                path = folder / shard.name
                with DatasetWriter.create(path, header, lasting=False) as writer:
                    made[shard.fingerprint] = write_parts(
                        writer,
                        [shard.part],
                        pool,
                        skip_bad=options.skip_bad,
                        on_progress=on_progress,
                    )
                    shard.check_source()
    except RunError as error:
        raise RunError(f"{error}; start again to continue: finished shards are kept") from error
    return made


def _stop_if_asked(job: Job) -> None:
    """Stops all ranks or none, as a signal may reach only some of them, or some of them later."""
    [stop_signal] = job.all_reduce_max([job.stop.asked])
    if stop_signal:
        raise SystemExit(end_stopped(job, int(stop_signal)))


def _begin(folder: Path) -> None:
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(
                f"{folder}: is not a folder, so shards cannot go there; move it, or name another "
                "output"
            )
        folder.mkdir(exist_ok=True)
        for left in folder.glob(".*.partial"):  # left by a killed job
            left.unlink()


def _missing(job: Job, folder: Path, shards: Sequence[Shard]) -> list[Shard]:
    """Missing or damaged shards; every rank checks some of them."""
    # The folder is listed, as a file system may cache for a while that a file does not exist.
    names = job.on_first(lambda: {path.name for path in folder.iterdir()})
    present = [shard for shard in shards if shard.name in names]
    mine = present[job.rank :: job.size]
    intact = {s.name for s in mine if not job.stop.asked and _is_intact(folder / s.name)}
    of_all: set[str] = job.broadcast(set().union(*job.gather(intact)))
    return [shard for shard in shards if shard.name not in of_all]


def _is_intact(path: Path) -> bool:
    try:
        verify_dataset(path)
    except InputError:
        return False
    return True


def _sum(shards: Iterable[Shard], made_by_rank: Iterable[Made]) -> PreprocessTotals:
    made = {name: totals for of_rank in made_by_rank for name, totals in of_rank.items()}
    total = PreprocessTotals()
    for shard in shards:
        total.add(made.get(shard.fingerprint, PreprocessTotals()))
    return total


def _remove(folder: Path) -> None:
    """Removes only the shards, including shards that earlier jobs made of other text."""
    with writing(folder):
        for path in folder.iterdir():
            if path.suffix in {".h5", ".partial"}:
                path.unlink()
        with suppress(OSError):  # it also holds other files
            folder.rmdir()
