"""Curves on an MLflow server, or in files of the run folder."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from dynapipe_hpc.data.errors import InputError

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
