"""Trackers: programs of others that keep and draw curves of runs, served by one thread."""

import math
import os
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Full, Queue
from typing import NamedTuple
from uuid import uuid4

from dynapipe_hpc.data.errors import InputError, warn
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.report.run_folder import write_atomically

MAX_WAITING = 1000
MAX_END_S = 60.0
_SERVER = "MLFLOW_TRACKING_URI"
_RUN = "dynapipe_hpc.run"
RUN_ID = "tracked.txt"
"""File of the run folder with the name by which trackers know the run."""

Numbers = Mapping[str, float]


class Tracker(NamedTuple):
    """A tracker of one run: its package, what adds finite numbers after an iteration, and its end.

    Both calls may raise what the package raises.
    """

    name: str
    add: Callable[[int, Numbers], object]
    close: Callable[[], object]


class Trackers:
    """Sends numbers to trackers, without which training does as well.

    Training never waits for a tracker and never ends because of one: what a slow one has no room
    for is left out, and one that fails gets nothing more. Both are said once.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        """Starts to serve trackers that are open."""
        self._trackers = list(trackers)
        self._waiting = Queue[tuple[int, Numbers] | None](MAX_WAITING)
        self._is_full = False
        self._thread = threading.Thread(target=self._serve, name="trackers", daemon=True)
        if self._trackers:
            self._thread.start()

    def add(self, step: int, numbers: Numbers) -> None:
        """Sends numbers by name, those that are finite, when `step` iterations are done."""
        if not self._trackers:
            return
        finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
        try:
            self._waiting.put_nowait((step, finite))
        except Full:
            if not self._is_full:
                warn(f"trackers lag {MAX_WAITING:,} iterations behind; they miss some")
            self._is_full = True

    def close(self) -> None:
        """Waits until all is sent, for a limited time."""
        if not self._thread.is_alive():
            return
        try:
            self._waiting.put(None, timeout=MAX_END_S)
            self._thread.join(MAX_END_S)
        except Full:
            pass
        if self._thread.is_alive():
            warn(f"trackers have not got all numbers after {MAX_END_S:g} s; the rest is lost")

    def _serve(self) -> None:
        while (entry := self._waiting.get()) is not None:
            self._send(entry)
        self._send(None)

    def _send(self, entry: tuple[int, Numbers] | None) -> None:
        for tracker in tuple(self._trackers):
            try:
                if entry is None:
                    tracker.close()
                else:
                    tracker.add(*entry)
            except Exception as error:  # of a package of others, about a network or a disk
                warn(f"{tracker.name}: {error}; it gets nothing more of this run")
                self._trackers.remove(tracker)


def open_trackers(output: Path, config: ReportConfig, text: str, n_done: int) -> Trackers:
    """Opens the trackers of a run, which they continue if iterations are done.

    `text` is the resolved configuration (TOML).
    """
    return Trackers(list(_open(output, config, text, n_done)))


def _open(output: Path, config: ReportConfig, text: str, n_done: int) -> Iterator[Tracker]:
    if config.tensorboard and (board := _tensorboard(output, n_done)):
        yield board
    if config.wandb is None and config.mlflow is None:
        return
    run_id = _run_id(output / RUN_ID, n_done)
    if config.wandb is not None:
        yield _weights_and_biases(output, config.wandb, run_id, text)
    if config.mlflow is not None:
        yield _mlflow(output, config.mlflow, run_id)


def _run_id(path: Path, n_done: int) -> str:
    if n_done and path.exists() and (known := read_text(path).strip()).isalnum():
        return known
    run_id = uuid4().hex[:16]
    write_atomically(path, run_id + "\n")
    return run_id


def _tensorboard(output: Path, n_done: int) -> Tracker | None:
    """None if it is not installed, or does not work here."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        # Later iterations of an earlier start are no longer shown.
        writer = SummaryWriter(str(output / "tensorboard"), purge_step=n_done + 1)
    except ImportError:
        return None
    except Exception as error:  # its versions do not go with all those of others
        warn(f"tensorboard: {error}; set report.tensorboard to false")
        return None

    def add(step: int, numbers: Numbers) -> None:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)

    return Tracker("tensorboard", add, writer.close)


def _weights_and_biases(output: Path, project: str, run_id: str, text: str) -> Tracker:
    import wandb

    try:
        run = wandb.init(
            project=project,
            name=output.resolve().name,
            dir=str(output),
            mode=os.environ.get("WANDB_MODE", "offline"),
            id=run_id,
            resume="allow",
            config=tomllib.loads(text),
            settings=wandb.Settings(console="off", silent=True),
        )
    except Exception as error:
        raise InputError(
            f'report.wandb = "{project}": {error}; set WANDB_MODE to offline in the '
            "environment, or leave report.wandb out"
        ) from error
    return Tracker("wandb", lambda step, numbers: run.log(dict(numbers), step=step), run.finish)


def _mlflow(output: Path, experiment: str, run_id: str) -> Tracker:
    """A tag holds the run's id, as MLflow chooses its own."""
    server = os.environ.get(_SERVER)
    if not server:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else it wants a database
        server = (output / "mlruns").resolve().as_uri()
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=server)
        known = client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else client.create_experiment(experiment)
        earlier = client.search_runs([number], f"tags.`{_RUN}` = '{run_id}'")
        if earlier:
            run = earlier[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            name = output.resolve().name
            run = client.create_run(number, tags={_RUN: run_id}, run_name=name).info.run_id
    except Exception as error:
        raise InputError(
            f'report.mlflow = "{experiment}": {error}; set {_SERVER} to a server that answers, '
            "unset it, or leave report.mlflow out"
        ) from error

    def add(step: int, numbers: Numbers) -> None:
        now_ms = int(1e3 * time.time())
        points = [Metric(name, number, now_ms, step) for name, number in numbers.items()]
        client.log_batch(run, points)

    return Tracker("mlflow", add, lambda: client.set_terminated(run, "FINISHED"))
