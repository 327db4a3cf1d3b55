"""The trackers that a configuration asks for."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.experiment.run.track.mlflow import MLflow
from dynapipe_hpc.experiment.run.track.tensorboard import open_tensorboard
from dynapipe_hpc.experiment.run.track.tracker import Tracker
from dynapipe_hpc.experiment.run.track.trackers import Trackers
from dynapipe_hpc.experiment.run.track.weights_and_biases import WeightsAndBiases
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.report.run_folder import write_atomically

RUN_ID = "tracked.txt"
"""File of the run folder with the name by which trackers know the run."""


def open_trackers(output: Path, config: ReportConfig, text: str, n_done: int) -> Trackers:
    """Opens the trackers of a run.

    Args:
        output: The run folder.
        config: What the configuration asks for.
        text: The resolved configuration (TOML).
        n_done: Iterations that are done; if any, trackers continue the run.

    Raises:
        InputError: A package refuses.
        RunError: The file system refuses.
    """
    return Trackers(list(_open(output, config, text, n_done)))


def _open(output: Path, config: ReportConfig, text: str, n_done: int) -> Iterator[Tracker]:
    if config.tensorboard and (board := open_tensorboard(output, n_done)):
        yield board
    if config.wandb is None and config.mlflow is None:
        return
    run_id = _run_id(output / RUN_ID, n_done)
    if config.wandb is not None:
        tables = tomllib.loads(text)
        yield WeightsAndBiases(output, config.wandb, run_id, tables)
    if config.mlflow is not None:
        yield MLflow(output, config.mlflow, run_id)


def _run_id(path: Path, n_done: int) -> str:
    if n_done and path.exists() and (known := read_text(path).strip()).isalnum():
        return known
    run_id = uuid4().hex[:16]
    write_atomically(path, run_id + "\n")
    return run_id
