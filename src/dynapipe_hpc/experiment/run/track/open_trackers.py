"""The trackers that a configuration asks for."""

import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.experiment.run.track.tensorboard import open_tensorboard
from dynapipe_hpc.experiment.run.track.tracker import Tracker
from dynapipe_hpc.experiment.run.track.trackers import Trackers
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.report.run_folder import write_atomically

SERVER = "MLFLOW_TRACKING_URI"
FOLDER = "mlruns"
_RUN = "dynapipe_hpc.run"


class MLflow:
    """One run of an experiment."""

    name = "mlflow"

    def __init__(self, output: Path, experiment: str, run_id: str) -> None:
        """Begins or continues the run.

        Args:
            output: The run folder, which holds the curves unless `MLFLOW_TRACKING_URI` is set.
            experiment: Name of the experiment.
            run_id: The same for all starts of a run; a tag holds it, as MLflow chooses its own.

        Raises:
            InputError: The package refuses, as without its server.
        """
        server = os.environ.get(SERVER)
        if not server:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else it wants a database
            server = (output / FOLDER).resolve().as_uri()
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        try:
            self._client = MlflowClient(tracking_uri=server)
            existing = self._client.get_experiment_by_name(experiment)
            number = (
                existing.experiment_id if existing else self._client.create_experiment(experiment)
            )
            earlier = self._client.search_runs([number], f"tags.`{_RUN}` = '{run_id}'")
            if earlier:
                self._run = earlier[0].info.run_id
                self._client.update_run(self._run, status="RUNNING")
            else:
                tags, name = {_RUN: run_id}, output.resolve().name
                created = self._client.create_run(number, tags=tags, run_name=name)
                self._run = created.info.run_id
        except Exception as error:
            raise InputError(
                f'report.mlflow = "{experiment}": {error}; set {SERVER} to a server that answers, '
                "unset it, or leave report.mlflow out"
            ) from error

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        now_ms = int(1e3 * time.time())
        points = [self._metric(name, number, now_ms, step) for name, number in numbers.items()]
        self._client.log_batch(self._run, points)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run, "FINISHED")


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


class WeightsAndBiases:
    """One run of a project."""

    name = "wandb"

    def __init__(self, output: Path, project: str, run_id: str, config: Mapping[str, Any]) -> None:
        """Begins or continues the run.

        Args:
            output: The run folder, in which `wandb/` keeps what is to be sent.
            project: Name of the project.
            run_id: The same for all starts of a run.
            config: The resolved configuration.

        Raises:
            InputError: The package refuses, as without a login.
        """
        import wandb

        try:
            self._run = wandb.init(
                project=project,
                name=output.resolve().name,
                dir=str(output),
                mode=os.environ.get("WANDB_MODE", "offline"),
                id=run_id,
                resume="allow",
                config=dict(config),
                settings=wandb.Settings(console="off", silent=True),
            )
        except Exception as error:
            raise InputError(
                f'report.wandb = "{project}": {error}; set WANDB_MODE to offline in the '
                "environment, or leave report.wandb out"
            ) from error

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Sends the rest."""
        self._run.finish()
