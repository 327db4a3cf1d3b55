"""Ranks that work on their own, for long, hear of it when one of them fails or is to stop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.job.job import Job


class _EndsEarly(Exception):  # noqa: N818 - not this rank's error
    """Another rank met an error, and says so itself; or one was asked to stop."""


@contextmanager
def fail_together(job: Job) -> Iterator[Callable[[], None]]:
    """Ends the block on all ranks soon after an error that explains itself on one of them.

    Meant inside of `Job.agreeing`, where ranks would wait for those that still work. Gives a
    function to call now and then, which ends the block if a peer failed, or any rank was asked to
    stop, which someone has to heed; all ranks together.
    """
    peers = job.comm.Dup()

    def check() -> None:
        if job.stop.asked or peers.iprobe():
            raise _EndsEarly

    def tell() -> None:
        for rank in range(job.size):
            if rank != job.rank:
                peers.send(None, rank)  # so small that it waits for nobody

    try:
        yield check
    except _EndsEarly:
        if job.stop.asked:
            tell()
    except (InputError, RunError, OSError):
        tell()
        raise
