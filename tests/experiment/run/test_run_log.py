"""What is printed when a run continues."""

from pathlib import Path

import pytest
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.run.run_lock import RunLock
from dynapipe_hpc.experiment.run.run_log import RunLog

PLACEMENT = Placement((4,))
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
