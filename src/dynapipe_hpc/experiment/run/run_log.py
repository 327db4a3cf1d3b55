"""The log of a run, which the first rank writes, prints and sends to trackers."""

import math
import os
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from queue import Full, Queue
from typing import NamedTuple
from uuid import uuid4

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, escaped, warn
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.run.iteration import QuietPeriod, RankTrace
from dynapipe_hpc.experiment.run.resume import n_repeatable
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.report.records import (
    EvaluationRecord,
    IterationNumbers,
    IterationRecord,
    describe_preferences,
    log_line,
    metrics,
)
from dynapipe_hpc.report.run_folder import RunFolder, write_atomically
from dynapipe_hpc.report.work_shares import PassWork

MAX_WAITING = 1000
MAX_END_S = 60.0
_SERVER = "MLFLOW_TRACKING_URI"
_RUN = "dynapipe_hpc.run"
RUN_ID = "tracked.txt"
"""File of the run folder with the name by which trackers know the run."""

Numbers = Mapping[str, float]


class Tracker(NamedTuple):
    """A tracker of one run: its package, a call to add an iteration's finite numbers, one to close.

    Both calls may raise any exception of the package.
    """

    name: str
    add: Callable[[int, Numbers], object]
    close: Callable[[], object]


class Trackers:
    """Sends numbers to trackers, on which training does not depend.

    Training never waits for a tracker and never ends because of one: numbers for which a slow
    tracker has no room are left out, and a tracker that fails gets nothing more. Both are reported
    once.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._waiting = Queue[tuple[int, Numbers] | None](MAX_WAITING)
        self._is_full = False
        self._thread = threading.Thread(target=self._serve, name="trackers", daemon=True)
        if self._trackers:
            self._thread.start()

    def add(self, step: int, numbers: Numbers) -> None:
        """Sends the finite numbers, by name, when `step` iterations are done."""
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
            warn(f"trackers have not received all numbers after {MAX_END_S:g} s; the rest is lost")

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
            except Exception as error:  # of a third-party package, about a network or a disk
                warn(f"{tracker.name}: {error}; it gets nothing more of this run")
                self._trackers.remove(tracker)


def open_trackers(output: Path, config: ReportConfig, text: str, n_done: int) -> Trackers:
    """Opens the trackers of a run; they continue the run if iterations are done.

    `text` is the resolved configuration (TOML).
    """
    trackers = list[Tracker]()
    if config.tensorboard and (board := _tensorboard(output, n_done)):
        trackers.append(board)
    if config.wandb is not None or config.mlflow is not None:
        run_id = _run_id(output / RUN_ID, n_done)
    if config.wandb is not None:
        trackers.append(_weights_and_biases(output, config.wandb, run_id, text))
    if config.mlflow is not None:
        trackers.append(_mlflow(output, config.mlflow, run_id))
    return Trackers(trackers)


def _run_id(path: Path, n_done: int) -> str:
    if n_done and path.exists() and (known := read_text(path).strip()).isalnum():
        return known
    run_id = uuid4().hex[:16]
    write_atomically(path, run_id + "\n")
    return run_id


def _tensorboard(output: Path, n_done: int) -> Tracker | None:
    """A tracker of TensorBoard; None if it is not installed, or does not work here."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        # Later iterations of an earlier start are no longer shown.
        writer = SummaryWriter(str(output / "tensorboard"), purge_step=n_done + 1)
    except ImportError:
        return None
    except Exception as error:  # not all its versions work with all versions of other packages
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
    """A tracker of MLflow; a tag holds the run's id, as MLflow chooses its own."""
    server = os.environ.get(_SERVER)
    if not server:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # otherwise it requires a database
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


N_RECENT = 20
_NUMBERS = [field.name for field in fields(IterationNumbers)]


class RunLog:
    """The run folder of the current run.

    A thread writes iterations, with their plans and traces, while the next one is executed: between
    iterations, other ranks would wait for it.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        placement: Placement,
        output: Path,
        *,
        machine: Mapping[str, str | int],
        n_done: int,
        lock: RunLock,
        quiet_period: QuietPeriod,
    ) -> None:
        """Creates a run folder, or continues one in which `n_done` iterations are done."""
        self._lock, self._quiet_period = lock, quiet_period
        self._work = PassWork(config.model, placement)
        self._writer = ThreadPoolExecutor(1, "run log")
        self._writing: Future[None] = Future()
        self._writing.set_result(None)
        facts = (output, to_toml(config, placement), machine)
        if n_done:
            print(escaped(f"{output}: continues after {n_done} iterations"), flush=True)
            self._folder = RunFolder.resume(*facts, n_done)
        else:
            self._folder = RunFolder.create(*facts, n_repeatable(output, config))
        tokens = sum(record.real_tokens for record in self._folder.records())
        self._trackers = open_trackers(output, config.report, self._folder.config, n_done)
        self._n_iterations, self._tokens = config.training.n_iterations, tokens
        self._ends_s = deque[float](maxlen=N_RECENT + 1)
        self._n_done, self._log_every = n_done, config.report.log_every
        self._n_shards = config.cluster.n_shards

    def add(
        self,
        numbers: IterationNumbers,
        samples: Sequence[Sample],
        traces: Sequence[RankTrace],
        measured_ms: float,
    ) -> None:
        """Adds an iteration with its global batch, which is written when the next has begun.

        `traces`: Traces of all ranks if they are to be written, else empty; only the traces of
        first shards are written.
        """
        self.flush()
        record = self._record(numbers, measured_ms)
        self._writing = self._writer.submit(self._write, record, traces, samples)

    def _record(self, numbers: IterationNumbers, measured_ms: float) -> IterationRecord:
        """Record of an iteration that has just ended, with the numbers of all ranks.

        The remaining time is estimated from the last iterations, including what happens between
        them, such as evaluations and checkpoints.
        """
        self._tokens += numbers.real_tokens
        if not self._ends_s:
            self._ends_s.append(time.monotonic() - 1e-3 * measured_ms)
        self._ends_s.append(time.monotonic())
        each_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        return IterationRecord(
            **{name: getattr(numbers, name) for name in _NUMBERS},
            measured_ms=measured_ms,
            time=datetime.now(UTC).astimezone().isoformat(timespec="milliseconds"),
            n_iterations=self._n_iterations,
            tokens=self._tokens,
            seconds_left=each_s * (self._n_iterations - numbers.iteration - 1),
        )

    def flush(self) -> None:
        """Returns when all iterations are written; raises `RunError` if they could not be."""
        self._writing.result()

    def print_line(self, line: str) -> None:
        """Prints a line, after the lines of the iterations so far."""
        self.flush()
        # In one piece, as the checkpoint writer prints at the same time.
        print(f"{line}\n", end="", flush=True)

    def add_evaluation(self, record: EvaluationRecord, *, is_best: bool) -> None:
        self.flush()
        self._lock.check()
        self._folder.add_evaluation(record)
        self._trackers.add(record.n_done, record.metrics)
        meaning, unit = f"perplexity {record.perplexity:,.4g}", "target tokens"
        if record.preferences:
            meaning, unit = describe_preferences(record.preferences), "pairs"
        self.print_line(
            f"evaluation after {record.n_done} iterations: loss {record.loss:.4f}, {meaning}, "
            f"{record.tokens:,} {unit} in {record.took_ms:,.0f} ms"
            f"{', the lowest since training began' * is_best}"
        )

    def _write(
        self, record: IterationRecord, traces: Sequence[RankTrace], samples: Sequence[Sample]
    ) -> None:
        self._quiet_period.wait()
        self._lock.check()
        self._folder.add(record)
        self._trackers.add(record.iteration + 1, metrics(record))
        is_end = record.iteration in (self._n_done, record.n_iterations - 1)
        is_skipped = not math.isfinite(record.gradient_norm)
        if is_end or is_skipped or (record.iteration + 1) % self._log_every == 0:
            # The text is written in one piece, as the checkpoint writer prints at the same time.
            print(f"{log_line(record)}\n", end="", flush=True)
        if traces:
            of_stages = traces[:: self._n_shards]
            plans = [decode(data) for data, _ in of_stages]
            measured = [each for _, each in of_stages]
            self._folder.add_trace(plans, measured, self._work.shares(plans, samples))

    def close(self) -> None:
        self._quiet_period.end()
        self.flush()
        self._writer.shutdown()
        self._trackers.close()
        self._folder.close()
