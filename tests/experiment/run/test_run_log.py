"""Lines that the first rank prints and writes about a run, and numbers that trackers get of it."""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from tests.examples.example_runs import example_plans, example_traces, iteration_result, record
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.checks import check_trackers
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run import run_log as of_trackers
from dynapipe_hpc.experiment.run.iteration import QuietPeriod, RankTrace
from dynapipe_hpc.experiment.run.run_log import RUN_ID, RunLog, Tracker, Trackers, open_trackers
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.report.run_folder import RunFolder

SAMPLES = [Sample(i, 7, 5) for i in (2, 4, 7)]
Output = pytest.CaptureFixture[str]


def trained_for(iterations: int) -> ExperimentConfig:
    return with_keys(tiny_experiment(), training={"iterations": iterations})


def log_in(
    config: ExperimentConfig,
    folder: Path,
    lock: RunLock | None = None,
    n_done: int = 0,
    placement: Placement = Placement((4,)),  # noqa: B008 - it is frozen
) -> RunLog:
    return RunLog(
        config,
        placement,
        folder,
        machine={},
        n_done=n_done,
        lock=lock or RunLock(folder, ""),
        quiet_period=QuietPeriod(),
    )


def traced(iteration: int) -> list[RankTrace]:
    plans = encode_plans(example_plans(iteration))
    return list(zip(plans, example_traces(iteration), strict=True))


@contextmanager
def log_of(folder: Path, n_shards: int = 1) -> Iterator[RunLog]:
    lock = RunLock(folder, "")
    lock.acquire()
    try:
        cluster = tiny_experiment(n_shards=n_shards).cluster
        config = trained_for(10).model_copy(update={"cluster": cluster})
        yield log_in(config, folder, lock, placement=Placement((2, 2)))
    finally:
        lock.release()


def test_every_trace_is_written_when_the_log_is_closed(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        for iteration in range(5):
            log.add(iteration_result(iteration), SAMPLES, traced(iteration), 500.0)
        log.close()
    run = RunFolder.open(tmp_path / "run")
    assert [timeline.iteration for timeline in run.timelines()] == list(range(5))
    padding = {bar.shares.padding for t in run.timelines() for bar in t.measured if bar.shares}
    assert all(0 < share < 1 for share in padding)
    assert len(list(run.records())) == len(list((tmp_path / "run" / "plans").iterdir())) == 5


def test_only_the_first_shard_of_a_stage_is_drawn(tmp_path: Path) -> None:
    with log_of(tmp_path / "run", n_shards=2) as log:
        twice = [each for each in traced(0) for _ in range(2)]
        log.add(iteration_result(0), SAMPLES, twice, 500.0)
        log.close()
    (timeline,) = RunFolder.open(tmp_path / "run").timelines()
    assert len(timeline.measured) == sum(len(trace.start_ms) for trace in example_traces(0))


def test_a_trace_that_cannot_be_written_ends_the_run_at_the_next(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        (tmp_path / "run" / "plans").write_text("in the way")
        log.add(iteration_result(0), SAMPLES, traced(0), 500.0)
        with pytest.raises(RunError, match="plans"):
            log.add(iteration_result(1), SAMPLES, traced(1), 500.0)
        with pytest.raises(RunError, match="plans"):
            log.close()


def test_metrics_count_tokens_and_estimate_what_is_left(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        for iteration in range(3):
            log.add(iteration_result(iteration), SAMPLES, (), 500.0)
        log.close()
    first, *_, last = RunFolder.open(tmp_path / "run").records()
    assert (first.tokens, last.tokens) == (36, 108)
    assert first.seconds_left == pytest.approx(9 * 0.5, abs=0.1)
    assert datetime.fromisoformat(first.time).utcoffset() is not None
    resumed = log_in(trained_for(10), tmp_path / "run", n_done=2)
    resumed.close()
    assert resumed._record(record(2), 500.0).tokens == 72 + 1000


def printed(folder: Path, capsys: Output, **report: int) -> list[str]:
    """Lines printed of ten iterations, of which iteration 4 skips its update."""
    config = trained_for(10).model_copy(update={"report": ReportConfig(**report)})
    lock = RunLock(folder, "")
    lock.acquire()
    log = log_in(config, folder, lock)
    for iteration in range(10):
        norm = math.inf if iteration == 4 else 1.0
        log.add(iteration_result(iteration, gradient_norm=norm), SAMPLES, (), 500.0)
    log.close()
    lock.release()
    out = capsys.readouterr().out.splitlines()
    return [line.partition(":")[0] for line in out if line.startswith("iteration")]


def test_every_iteration_is_printed_or_every_nth(tmp_path: Path, capsys: Output) -> None:
    assert len(printed(tmp_path / "a", capsys)) == 10
    some = printed(tmp_path / "b", capsys, log_every=4)
    assert some == [f"iteration {k}" for k in (0, 3, 4, 7, 9)]


class Notes:
    """A tracker that writes down what it gets, fails at a step, or waits for ever."""

    def __init__(self, fails_at: int = -1, blocked: threading.Event | None = None) -> None:
        self.got: list[tuple[int, Mapping[str, float]]] = []
        self.closed = False
        self._fails_at, self._blocked = fails_at, blocked

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._blocked:
            self._blocked.wait(0.5)
        if step == self._fails_at:
            raise OSError("the server does not answer")
        self.got.append((step, numbers))

    def close(self) -> None:
        self.closed = True

    def tracker(self) -> Tracker:
        return Tracker("notes", self.add, self.close)


def test_trackers_get_what_is_finite_in_order() -> None:
    notes = Notes()
    trackers = Trackers([notes.tracker()])
    for step in range(3):
        trackers.add(step, {"loss": float(step), "norm": math.inf})
    trackers.close()
    assert notes.got == [(step, {"loss": float(step)}) for step in range(3)]
    assert notes.closed


def test_one_that_fails_gets_nothing_more_and_the_others_all(capsys: Output) -> None:
    failing, sound = Notes(fails_at=1), Notes()
    trackers = Trackers([failing.tracker(), sound.tracker()])
    for step in range(4):
        trackers.add(step, {})
    trackers.close()
    assert [step for step, _ in failing.got] == [0]
    assert [step for step, _ in sound.got] == [0, 1, 2, 3]
    assert capsys.readouterr().err == (
        "dynapipe-hpc: warning: notes: the server does not answer; it gets nothing more of this "
        "run\n"
    )


def test_training_does_not_wait_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(of_trackers, "MAX_END_S", 0.05)
    monkeypatch.setattr(of_trackers, "MAX_WAITING", 3)
    blocked = threading.Event()
    trackers = Trackers([Notes(blocked=blocked).tracker()])
    for step in range(9):
        trackers.add(step, {})
    trackers.close()
    blocked.set()
    err = capsys.readouterr().err
    assert err.count("trackers lag 3 iterations behind") == 1
    assert "not received all numbers after 0.05 s" in err


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_named_before_the_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynapipe_hpc.experiment.checks.find_spec", lambda _: None)
    files = Experiment(tiny_experiment())
    check_trackers(files.config)
    report = ReportConfig.model_validate({name: "study"})
    files = Experiment(files.config.model_copy(update={"report": report}))
    with pytest.raises(InputError, match=rf"report.{name} needs .*'dynapipe-hpc\[{name}\]'"):
        check_trackers(files.config)


def add_and_resume(folder: Path, config: ReportConfig) -> None:
    """Steps 1 to 4 with loss 1 to 4; then, resumed after 2, steps 3 and 4 with loss 30 and 40."""
    for n_done, losses in ((0, (1.0, 2.0, 3.0, 4.0)), (2, (30.0, 40.0))):
        trackers = open_trackers(folder, config, "[report]\nlog_every = 1\n", n_done)
        for step, loss in enumerate(losses, start=n_done + 1):
            trackers.add(step, {"loss": loss, "norm": math.nan})
        trackers.close()


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_shows_a_resumed_run_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    add_and_resume(tmp_path, ReportConfig())
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    assert shown.Tags()["scalars"] == ["loss"]
    found = [(point.step, point.value) for point in shown.Scalars("loss")]
    assert found == [(1, 1), (2, 2), (3, 30), (4, 40)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_continues_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    add_and_resume(tmp_path, ReportConfig(tensorboard=False, mlflow="study"))
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", tmp_path.name)
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [(p.step, p.value) for p in points][-2:] == [(3, 30), (4, 40)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_weights_and_biases_keeps_one_run_for_its_sync(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    add_and_resume(tmp_path, ReportConfig(tensorboard=False, wandb="study"))
    run_id = (tmp_path / RUN_ID).read_text().strip()
    kept = list((tmp_path / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert kept
    assert all(path.stat().st_size for path in kept)
