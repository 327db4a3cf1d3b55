"""The maker of one rank's share of a dataset's shards."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.text.preprocess import OnProgress, PreprocessTotals, header_of, write_parts
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.shard import Shard
from dynapipe_hpc.data.text.tokenize_pool import TokenizePool, open_pool
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.world import STARTED

OnShare = Callable[[float], None]
"""Callback after every block that takes the share of this rank's text that is done."""


Made = dict[str, PreprocessTotals]
"""Totals of each shard made, by fingerprint."""


@dataclass(frozen=True, slots=True)
class ShardMaker:
    """Makes shards on one rank.

    Attributes:
        folder: Folder of the shards.
        recipe: How lines become samples.
        skip_bad: Whether to skip bad lines instead of stopping at the first.
        n_workers: Number of worker processes, which tokenize.
    """

    folder: Path
    recipe: Recipe
    skip_bad: bool
    n_workers: int

    def make(
        self, shards: Sequence[Shard], check_peers: Callable[[], None], on_share: OnShare
    ) -> Made:
        """Makes shards one after the other; each appears when it is complete.

        Args:
            shards: The shards to make.
            check_peers: Check after every block, which raises to end early.
            on_share: Callback after every block.

        Raises:
            InputError: A text cannot be read or changed, or a line is bad.
            RunError: A shard cannot be written, or a worker process died.
        """
        made: Made = {}
        n_bytes = sum(shard.n_bytes for shard in shards)

        def on_progress(totals: PreprocessTotals) -> None:
            check_peers()
            n_done = sum(done.n_bytes for done in made.values()) + totals.n_bytes
            on_share(min(1.0, n_done / n_bytes))

        try:
            with open_pool(self.recipe, self.n_workers) as pool:
                for shard in shards:
                    made[shard.fingerprint] = self._make(shard, pool, on_progress)
        except RunError as error:
            raise RunError(f"{error}; start again to continue: finished shards are kept") from error
        return made

    def _make(self, shard: Shard, pool: TokenizePool, on_progress: OnProgress) -> PreprocessTotals:
        header = header_of(self.recipe, [shard.part.path])
        with DatasetWriter.create(self.folder / shard.name, header) as writer:
            totals = write_parts(
                writer, [shard.part], pool, skip_bad=self.skip_bad, on_progress=on_progress
            )
            shard.check_source()
        return totals


def workers_of(job: Job, n_workers: int) -> int:
    """Number of worker processes on this rank; all ranks together.

    Args:
        job: The ranks.
        n_workers: The configured number; 0 for this rank's share of the cores that it may run on,
            which other ranks of its host may use too.
    """
    cores = sorted(os.sched_getaffinity(0))
    host = job.on_this_host()
    n_sharing = host.broadcast(host.gather(cores)).count(cores)
    host.free()
    return n_workers or max(1, min(STARTED.n_cores, len(cores) // n_sharing))
