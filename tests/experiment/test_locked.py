"""Return of the lock on a run folder at the end of a job."""

from pathlib import Path

import pytest
from mpi4py import MPI

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.run_lock import locked
from dynapipe_hpc.job.job import Job

ALONE = Job(MPI.COMM_SELF)


def lock_files(folder: Path) -> int:
    return len(list(folder.glob(".lock/*.json")))


def test_ranks_that_end_together_give_back_the_lock(tmp_path: Path) -> None:
    with locked(ALONE, tmp_path):
        assert lock_files(tmp_path) == 1
    with pytest.raises(SystemExit), locked(ALONE, tmp_path):
        raise SystemExit(2)
    assert lock_files(tmp_path) == 0


def test_the_lock_stays_while_the_error_of_one_rank_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(RunError), locked(ALONE, tmp_path) as lock:
        raise RunError("the disk is gone")
    assert lock_files(tmp_path) == 1
    lock.release()
