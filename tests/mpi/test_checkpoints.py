"""Ranks agree on what is a checkpoint, whatever happens to the files of one of them."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from mpi4py import MPI
from tests.examples.checkpoint_weights import load_weights
from tests.examples.training_case import SHAPE, Rank, make_rank

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.executor.transport.mpi import MpiCollectives
from dynapipe_hpc.experiment.run import resume
from dynapipe_hpc.experiment.run.open_run import LossHistory
from dynapipe_hpc.experiment.run.resume import ResumePoint
from dynapipe_hpc.experiment.run.run import Checkpoints
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.experiment.watch.rank_status import Position
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder, Facts
from dynapipe_hpc.training.checkpoint.parts import TrainingState
from dynapipe_hpc.training.collectives import Collectives

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
MAX_S = 60
FACTS: Facts = {"training.seed": 7}


@pytest.fixture
def path() -> Iterator[Path]:
    """A folder that all ranks share."""
    shared = Path(WORLD.bcast(mkdtemp() if RANK == 0 else ""))
    yield shared / "checkpoints"
    WORLD.Barrier()
    if RANK == 0:
        shutil.rmtree(shared)


class Training:
    """A rank that trains with made-up gradients."""

    def __init__(
        self,
        path: Path,
        config: CheckpointConfig,
        check_lock: Callable[[], None] = lambda: None,
        history: LossHistory | None = None,
    ) -> None:
        cluster = Cluster(n_stages=SIZE, device_memory_bytes=1)
        collectives: Collectives = MpiCollectives(WORLD, cluster)
        self.job = Job(WORLD)
        self.folder = CheckpointFolder(path, config)
        self.own: Rank = make_rank(cluster, RANK, collectives, dtype=torch.float32, shape=SHAPE)
        self.state = TrainingState(self.own.module, self.own.optimizer, collectives)
        self.checkpoints = Checkpoints(
            self.job,
            config,
            self.folder,
            self.state,
            facts=FACTS,
            position=Position(),
            check_lock=check_lock,
            history=history,
        )

    def step(self) -> None:
        self.own.optimizer.parameters.gradients.fill_(0.1)
        self.own.optimizer.step().read()

    def names(self) -> list[str]:
        WORLD.Barrier()
        found = sorted(found.name for found in self.folder.path.iterdir())
        WORLD.Barrier()
        return found


def find_resume_point(job: Job, folder: CheckpointFolder, facts: Facts) -> ResumePoint | None:
    with job.fail_together():
        return resume.find_resume_point(job, folder, facts)


def fill_disk(path: Path, n_done: int) -> None:
    """Lets the last rank meet a full disk."""
    if RANK == SIZE - 1:
        partial = path / f".{n_done:06d}.partial"
        partial.mkdir(parents=True)
        (partial / f"part-{RANK:05d}.bin").symlink_to("/dev/full")
    WORLD.Barrier()


def test_a_checkpoint_is_completed_while_training_goes_on(path: Path) -> None:
    training = Training(path, CheckpointConfig(every=1000))
    training.step()
    expected = training.own.weights()
    training.checkpoints.save_if_due(1000)
    deadline = time.monotonic() + MAX_S
    n_done = 1000
    while not WORLD.bcast((path / "001000").is_dir() or time.monotonic() > deadline):
        training.step()
        n_done += 1
        training.checkpoints.save_if_due(n_done)
    found = load_weights(path / "001000")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_one_that_is_waited_for_is_complete(path: Path) -> None:
    training = Training(path, CheckpointConfig(every=2))
    for n_done in (1, 2, 3):
        training.step()
        training.checkpoints.save_if_due(n_done)
    training.checkpoints.save_now(3)
    assert training.names() == ["000002", "000003"]
    training.checkpoints.save_now(3)
    assert training.names() == ["000002", "000003"]


def test_one_that_was_begun_is_completed_when_a_run_ends_early(path: Path) -> None:
    training = Training(path, CheckpointConfig(every=2))
    training.checkpoints.save_if_due(2)
    assert training.checkpoints.finish() == ""
    assert training.names() == ["000002"]
    assert training.checkpoints.finish() == ""


@pytest.mark.parametrize(("every", "stopped", "names"), [
    (2, False, ["000002"]),
    (2, True, ["000002", "000003"]),
    (0, False, []),
])  # fmt: skip
def test_the_last_state_is_left_out_by_name_unless_a_run_is_to_go_on(
    path: Path, every: int, stopped: bool, names: list[str]
) -> None:
    training = Training(path, CheckpointConfig(every=every, last=False))
    for n_done in (1, 2, 3):
        training.step()
        training.checkpoints.save_if_due(n_done)
    training.checkpoints.end(3, stopped=stopped)
    assert (training.names() if names else []) == names
    assert path.exists() == bool(names)


def test_training_goes_on_without_a_checkpoint_that_does_not_fit_on_the_disk(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(path, CheckpointConfig(every=1))
    fill_disk(path, 2)
    for n_done in (1, 2, 3):
        training.step()
        training.checkpoints.save_if_due(n_done)
    training.checkpoints.save_now(3)
    assert training.names() == ["000001", "000003"]
    told = capfd.readouterr().err
    if RANK == 0:
        assert "no checkpoint after 2 iterations, earlier ones are kept: " in told
        assert f"part-{SIZE - 1:05d}.bin: cannot be written: No space left on device" in told


def test_a_checkpoint_that_must_be_written_ends_the_run_if_it_cannot(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(path, CheckpointConfig(every=1))
    training.step()
    training.checkpoints.save_if_due(1)
    training.step()
    fill_disk(path, 2)
    with pytest.raises(SystemExit) as ended:
        training.checkpoints.save_now(2)
    assert ended.value.code == 1
    assert training.names() == ["000001"]
    if RANK == 0:
        assert "the last checkpoint could not be written: " in capfd.readouterr().err


@pytest.mark.skipif(SIZE > 1, reason="the first rank alone raises, and its job ends")
def test_a_run_whose_folder_was_taken_over_completes_no_checkpoint(path: Path) -> None:
    lock = RunLock(path.parent)
    lock.acquire()
    training = Training(path, CheckpointConfig(every=1), lock.check)
    training.step()
    lock.release()
    with pytest.raises(RunError, match="the lock of this run is gone"):
        training.checkpoints.save_now(1)
    assert training.names() == [".000001.partial"]


def test_all_ranks_go_on_from_the_newest_that_is_whole(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(path, CheckpointConfig(every=1, keep_last=3))
    for n_done in (1, 2, 3):
        training.step()
        training.checkpoints.save_if_due(n_done)
    training.checkpoints.save_now(3)
    if RANK == 0:
        (path / ".000004.partial").mkdir()
        with (path / "000003" / f"part-{SIZE - 1:05d}.bin").open("r+b") as file:
            file.truncate(10)
    WORLD.Barrier()
    capfd.readouterr()
    point = find_resume_point(training.job, training.folder, FACTS)
    assert point is not None
    assert point.description.n_done == 2
    assert training.names() == ["000001", "000002", "000003.damaged"]
    if RANK == 0:
        told = capfd.readouterr().err
        assert ".000004.partial: incomplete checkpoint removed" in told
        assert f"000003/part-{SIZE - 1:05d}.bin: is damaged: holds 10 of " in told
