"""Traces of iterations: those that the configuration or a request wants."""

import os
import re
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.run.iteration import ExecutedIteration, IterationResult, RankTrace
from dynapipe_hpc.experiment.run.plan_ahead import PlannerActivity
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.print_error import print_error, warn

NAME = "trace.request"
_MAX_BYTES = 64
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?|\+(\d{1,9})")
NOTHING = (-1, -1)


class TraceRequest:
    """The file of one run folder; it is removed when it has been read.

    It holds the first and the last iteration, `120-130`, one iteration, `120`, or a number of
    iterations from the current one on, `+10`.
    """

    def __init__(self, folder: Path, *, is_read: bool = True) -> None:
        """Looks into a run folder whenever `take` is called, on the rank that reads requests."""
        self._path = folder / NAME
        self._is_usable = is_read

    def take(self, iteration: int) -> tuple[int, int]:
        """The first and the last iteration that a new request names; `NOTHING` without one.

        A request that cannot be used is said, and does not end the run.
        """
        if not self._is_usable or not os.path.lexists(self._path):
            return NOTHING
        try:
            text = read_input(self._path, _MAX_BYTES).decode(errors="replace").strip()
            if not text:  # created, but not yet written
                return NOTHING
            self._path.unlink()
        except (InputError, OSError) as error:
            warn(f"{self._path}: {error}; requests are no longer looked for")
            self._is_usable = False
            return NOTHING
        try:
            first, last = _parse(text, iteration)
        except InputError as error:
            warn(f"{self._path}: {error}")
            return NOTHING
        print_error(f"{NAME}: iterations {first} to {last} are traced")
        return first, last


def _parse(text: str, iteration: int) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError(f"{quoted(text)} is no range; write 120-130, 120 or +10")
    if match[3]:
        first, last = iteration, iteration + int(match[3]) - 1
    else:
        first, last = int(match[1]), int(match[2] or match[1])
    if last < max(first, iteration):
        raise InputError(f"{quoted(text)} has no iteration from {iteration} on; write +10")
    return max(first, iteration), last


class Traces:
    """Traces of a run, which the first rank writes."""

    def __init__(
        self, job: Job, config: ExperimentConfig, output: Path, activity: PlannerActivity
    ) -> None:
        """Gathers traces of the first shard's ranks."""
        self._job, self._activity = job, activity
        self._n_first, self._n_shards = config.report.trace_iterations, config.cluster.n_shards
        self._request = TraceRequest(output, is_read=job.is_first)
        self._traced_range = range(0)

    def take_request(self, iteration: int) -> tuple[int, int]:
        """The iterations that a new request wants, see `TraceRequest.take`."""
        return self._request.take(iteration)

    def gather_if_wanted(
        self, executed: ExecutedIteration, result: IterationResult
    ) -> list[RankTrace]:
        """The traces of an iteration on the first rank; none elsewhere, or if it is not traced.

        All ranks call this together, and know from the combined result whether they gather.
        """
        if result.trace_last >= 0:
            self._traced_range = range(result.trace_first, result.trace_last + 1)
        iteration = result.iteration
        if iteration >= self._n_first and iteration not in self._traced_range:
            return []
        return self._job.gather(executed.rank_trace(self._activity))[:: self._n_shards]
