"""Pipelines over processes give what one process gives, to rounding; and their checkpoints."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

import pytest
import torch
from mpi4py import MPI
from tests.examples.checkpoint_weights import load_weights
from tests.examples.equal_shares import equal_shares
from tests.examples.pipeline_training import assert_equal
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import (
    SHAPE,
    T5_SHAPE,
    Outcome,
    Rank,
    make_rank,
    over_replicas,
    random_samples,
    random_split,
    unsplit_training,
)

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.transport import mpi
from dynapipe_hpc.executor.transport.mpi import MpiCollectives
from dynapipe_hpc.experiment.rank.channels import Channels, open_channels, open_torch_channels
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice
from dynapipe_hpc.experiment.run import resume
from dynapipe_hpc.experiment.run.open_run import LossHistory
from dynapipe_hpc.experiment.run.resume import ResumePoint
from dynapipe_hpc.experiment.run.run import Checkpoints
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.experiment.watch.rank_status import Position
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.models.sharding.shards import Split
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder, Facts
from dynapipe_hpc.training.checkpoint.parts import TrainingState
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.tied_copies import paired_stages, tied_weights

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
LIMIT_S = 60
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
ZERO_STAGES: tuple[Literal[0, 1], ...] = (0, 1)
CLUSTERS = [
    Cluster(
        n_stages=stages,
        n_replicas=SIZE // (stages * shards),
        n_shards=shards,
        sequence_parallel=shards > 1 and zero_stage == 1,
        device_memory_bytes=1_000_000,
        zero_stage=zero_stage,
    )
    for stages, shards in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4))
    for zero_stage in ZERO_STAGES
    if SIZE % (stages * shards) == 0
]
REDUCING = [c for c in CLUSTERS if c.n_shards == 1 < c.n_replicas and c.zero_stage == 0]
SOME = [c for c in CLUSTERS if c.zero_stage == 1]
ONE_FAMILY_EACH = [*((SHAPE, c) for c in SOME[::2]), *((T5_SHAPE, c) for c in SOME[1::2])]
ON_CPU = RankDevice(CPU)
DEVICES = [CPU, torch.device("cuda", 0)]
BATCHES = tuple(random_samples(seed, n=20) for seed in (1, 2, 3))
# For gloo, which takes milliseconds for every sum.
SMALL_BATCHES = tuple(random_samples(seed, n=10) for seed in (1, 2, 3))
MIXED = (Layout.PACKED, Layout.PADDED)


def name_of(cluster: Cluster) -> str:
    sizes = f"{cluster.n_stages}x{cluster.n_replicas}x{cluster.n_shards}"
    return f"{sizes} zero {cluster.zero_stage}{' spread' * cluster.sequence_parallel}"


def train(
    shape: ModelShape,
    cluster: Cluster,
    batches: Sequence[Sequence[Sample]],
    channels: Channels,
    device: torch.device = CPU,
    schedule: str = "adaptive",
    modes: Sequence[Recompute] = tuple(Recompute),
    layouts: Sequence[Layout] = (Layout.PADDED,),
) -> tuple[Outcome, dict[str, Split]]:
    """This rank's part of a training run; losses are the whole job's."""
    stage = cluster.stage_of(RANK)
    own = make_rank(cluster, stage, channels.collectives, shape=shape, device=device)
    outcome = Outcome([], [], {})
    for k, samples in enumerate(batches):
        own.tokens.start_iteration(samples)
        microbatches = random_split(samples, len(samples) * 2 // 5, k, modes, shape, layouts)
        replicas = over_replicas(microbatches, cluster.n_replicas)
        plans = planned_iteration(replicas, cluster, shape, schedule, k)
        trace = launch_plan(plans[cluster.plan_of(RANK)], own.stage, channels.transport).finish()
        outcome.losses.append(WORLD.allreduce(trace.loss) / cluster.n_shards)
        outcome.norms.append(trace.gradient_norm)
    outcome.tensors = {name: weights.cpu() for name, weights in own.weights().items()}
    return outcome, own.splits()


def over_mpi(cluster: Cluster, on: RankDevice = ON_CPU) -> Channels:
    return open_channels(Job(WORLD), cluster, on, torch.float64, holders=(), timeout_s=LIMIT_S)


def over_process_groups(shape: ModelShape, cluster: Cluster) -> Channels:
    tied = tied_weights(shape, equal_shares(shape, cluster), cluster.n_shards)
    return open_torch_channels(
        "gloo",
        Job(WORLD),
        cluster,
        CPU,
        dtype=torch.float64,
        holders=paired_stages(tied),
        timeout_s=LIMIT_S,
    )


@cache
def unsplit(shape: ModelShape, *, is_small: bool) -> Outcome:
    return unsplit_training(SMALL_BATCHES if is_small else BATCHES, shape)


def own_part(shape: ModelShape, splits: dict[str, Split], *, is_small: bool = False) -> Outcome:
    """Result of one process with the unsplit model, of its weights this rank's part."""
    whole = unsplit(shape, is_small=is_small)
    parts = {name: split.part_of(whole.tensors[name]) for name, split in splits.items()}
    return replace(whole, tensors=parts)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=name_of)
@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
def test_three_steps_give_the_unsplit_weights(shape: ModelShape, cluster: Cluster) -> None:
    channels = over_mpi(cluster)
    found, splits = train(shape, cluster, BATCHES, channels)
    assert_equal(found, own_part(shape, splits))


@pytest.mark.parametrize("cluster", SOME, ids=name_of)
@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
def test_so_do_they_over_process_groups(shape: ModelShape, cluster: Cluster) -> None:
    channels = over_process_groups(shape, cluster)
    found, splits = train(shape, cluster, SMALL_BATCHES, channels)
    channels.close()
    assert_equal(found, own_part(shape, splits, is_small=True))


@pytest.mark.parametrize(
    ("shape", "cluster"),
    ONE_FAMILY_EACH,
    ids=[f"{shape.family} {name_of(cluster)}" for shape, cluster in ONE_FAMILY_EACH],
)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.type)
def test_so_do_ranks_that_share_a_device(
    shape: ModelShape, cluster: Cluster, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none")
    if device.type == "cpu":
        monkeypatch.setattr(mpi, "to_host", torch.Tensor.clone)
    channels = over_mpi(cluster, RankDevice(device, is_shared=True))
    found, splits = train(shape, cluster, SMALL_BATCHES, channels, device)
    channels.close()
    assert_equal(found, own_part(shape, splits, is_small=True))


@pytest.mark.parametrize("schedule", ["zb_h1", "threes"])
@pytest.mark.parametrize("cluster", CLUSTERS, ids=name_of)
def test_so_do_split_passes_of_packed_and_padded_rows(cluster: Cluster, schedule: str) -> None:
    channels = over_mpi(cluster)
    found, splits = train(SHAPE, cluster, BATCHES, channels, schedule=schedule, layouts=MIXED)
    assert_equal(found, own_part(SHAPE, splits))


def noting(events: list[str], name: str, function: Callable[..., object]) -> Callable[..., object]:
    """The function, which notes when it begins and ends."""

    def noted(*arguments: object) -> object:
        events.append(f"{name} begins")
        result = function(*arguments)
        events.append(f"{name} ends")
        return result

    return noted


@pytest.mark.parametrize("schedule", ["zb_h1", "weights last"])
@pytest.mark.parametrize("cluster", REDUCING, ids=name_of)
def test_their_sums_over_replicas_start_within_the_last_second_half(
    cluster: Cluster, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = over_process_groups(SHAPE, cluster)
    events: list[str] = []
    for name in ("backward", "backward_weight"):
        noted = noting(events, name, getattr(ModuleStage, name))
        monkeypatch.setattr(ModuleStage, name, noted)
    sums = noting(events, "sum", channels.collectives.start_sum_over_replicas)
    monkeypatch.setattr(channels.collectives, "start_sum_over_replicas", sums)
    train(*(SHAPE, cluster, BATCHES[:1], channels, CPU, schedule, (Recompute.NONE,), MIXED))
    channels.close()
    assert events.count("backward ends") == events.count("backward_weight ends") > 1
    after_sum = events[events.index("sum begins") :]
    assert "backward begins" not in after_sum
    assert "backward_weight begins" not in after_sum
    assert after_sum.count("backward_weight ends") == 1  # the last, within which it began


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

    def take_three_steps(self) -> None:
        for n_done in (1, 2, 3):
            self.step()
            self.checkpoints.save_if_due(n_done)

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
    training.take_three_steps()
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
    training.take_three_steps()
    training.checkpoints.end(3, stopped=stopped)
    assert (training.names() if names else []) == names
    assert path.exists() == bool(names)


def test_training_goes_on_without_a_checkpoint_that_does_not_fit_on_the_disk(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training(path, CheckpointConfig(every=1))
    fill_disk(path, 2)
    training.take_three_steps()
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
    training.take_three_steps()
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
