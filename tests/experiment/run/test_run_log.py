"""What the first rank prints and writes about a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.examples.example_runs import example_plans, example_traces, record
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.run.record import Execution
from dynapipe_hpc.experiment.run.run_lock import RunLock
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.report.run_folder import RunFolder

PLACEMENT = Placement((4,))
SAMPLES = [Sample(i, 7, 5) for i in (2, 4, 7)]
Output = pytest.CaptureFixture[str]


def trained_for(iterations: int, decay: int | None = None) -> ExperimentConfig:
    config = tiny_experiment()
    changes = {"iterations": iterations, "decay_iterations": decay}
    training = config.training.model_copy(update=changes)
    return config.model_copy(update={"training": training})


def said(folder: Path, config: ExperimentConfig, capsys: Output) -> str:
    lock = RunLock(folder, "")
    RunLog(trained_for(10), PLACEMENT, folder, 1, 0, lock).close()
    capsys.readouterr()
    RunLog(config, PLACEMENT, folder, 1, 10, lock).close()
    return capsys.readouterr().out


def test_a_learning_rate_that_is_rewound_is_told(tmp_path: Path, capsys: Output) -> None:
    out = said(tmp_path / "run", trained_for(20), capsys)
    assert "run: continues after 10 iterations; the learning rate of iteration 10 changes" in out
    assert "training.decay_iterations=10 keeps it" in out


def test_a_learning_rate_that_stays_is_not(tmp_path: Path, capsys: Output) -> None:
    out = said(tmp_path / "run", trained_for(20, decay=10), capsys)
    assert out.endswith("run: continues after 10 iterations\n")


def executions(iteration: int) -> list[Execution]:
    pairs = zip(example_plans(iteration), example_traces(iteration), strict=True)
    return [Execution(plan, trace, 0.0, 0.0, 1) for plan, trace in pairs]


@contextmanager
def log_of(folder: Path) -> Iterator[RunLog]:
    lock = RunLock(folder, "")
    lock.acquire()
    try:
        yield RunLog(trained_for(10), Placement((2, 2)), folder, 1, 0, lock)
    finally:
        lock.release()


def test_every_trace_is_written_when_the_log_is_closed(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        for iteration in range(5):
            log.add(record(iteration), executions(iteration), SAMPLES)
        log.close()
    run = RunFolder.open(tmp_path / "run")
    assert [timeline.iteration for timeline in run.timelines()] == list(range(5))
    padding = {bar.shares.padding for t in run.timelines() for bar in t.measured if bar.shares}
    assert all(0 < share < 1 for share in padding)
    assert len(list(run.records())) == len(list((tmp_path / "run" / "plans").iterdir())) == 5


def test_a_trace_that_cannot_be_written_ends_the_run_at_the_next(tmp_path: Path) -> None:
    with log_of(tmp_path / "run") as log:
        (tmp_path / "run" / "plans").write_text("in the way")
        log.add(record(0), executions(0), SAMPLES)
        with pytest.raises(RunError, match="plans"):
            log.add(record(1), executions(1), SAMPLES)
        with pytest.raises(RunError, match="plans"):
            log.close()
