"""Early end of long, independent work on all ranks when one of them fails or is to stop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.job.job import Job


class _EndsEarly(Exception):  # noqa: N818 - not this rank's error
    """Another rank failed, and reports the error itself; or a rank was asked to stop."""


@contextmanager
def fail_early(job: Job) -> Iterator[Callable[[], None]]:
    """Ends the block on all ranks soon after an InputError, RunError or OSError on one of them.

    Used inside `Job.fail_together`, where failed ranks would wait for those that still work. Called
    by all ranks together. The caller has to handle a request to stop after the block.

    Yields:
        A function to call from time to time; it ends the block if another rank failed or any rank
        was asked to stop.
    """
    peers = job.comm.Dup()

    def check() -> None:
        if job.stop.asked or peers.iprobe():
            raise _EndsEarly

    def tell() -> None:
        for rank in range(job.size):
            if rank != job.rank:
                peers.send(None, rank)  # so small that the send does not block

    try:
        yield check
    except _EndsEarly:
        if job.stop.asked:
            tell()
    except (InputError, RunError, OSError):
        tell()
        raise
