"""Curves in programs of others: what they get, and that training needs none of them."""

import math
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import RUN_CHECKS
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run import run_log as of_trackers
from dynapipe_hpc.experiment.run.run_log import RUN_ID, Tracker, Trackers, open_trackers
from dynapipe_hpc.report.config import ReportConfig

Output = pytest.CaptureFixture[str]


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
    assert "not got all numbers after 0.05 s" in err


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_named_before_the_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynapipe_hpc.experiment.checks.find_spec", lambda _: None)
    files = Experiment(tiny_experiment())
    assert RUN_CHECKS["trackers"](files, 1) == "none to send numbers to"
    report = ReportConfig.model_validate({name: "study"})
    files = Experiment(files.config.model_copy(update={"report": report}))
    with pytest.raises(InputError, match=rf"report.{name} needs .*'dynapipe-hpc\[{name}\]'"):
        RUN_CHECKS["trackers"](files, 1)


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
