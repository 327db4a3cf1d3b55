"""Ranks that work on their own, for long, hear of it when one of them fails."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.launch import Job


class _PeerFailed(Exception):  # noqa: N818 - not this rank's error
    """Another rank met an error, and says so itself."""


@contextmanager
def fail_together(job: Job) -> Iterator[Callable[[], None]]:
    """Ends the block on all ranks soon after an error that explains itself on one of them.

    Meant inside of `Job.agreeing`, where ranks would wait for those that still work. Gives a
    function to call now and then, which ends the block if a peer failed; all ranks together.
    """
    peers = job.comm.Dup()

    def check() -> None:
        if peers.iprobe():
            raise _PeerFailed

    try:
        yield check
    except _PeerFailed:
        return
    except (InputError, RunError, OSError):
        for rank in range(job.size):
            if rank != job.rank:
                peers.send(None, rank)  # so small that it waits for nobody
        raise
