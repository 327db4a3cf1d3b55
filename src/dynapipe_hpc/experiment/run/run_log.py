"""The log of a run, which the first rank writes and prints."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.run.iteration import QuietPeriod, RankTrace
from dynapipe_hpc.experiment.run.resume import n_repeatable
from dynapipe_hpc.experiment.run.trackers import open_trackers
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.report.records import (
    EvaluationRecord,
    IterationNumbers,
    IterationRecord,
    describe_preferences,
    log_line,
    metrics,
)
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.work_shares import PassWork
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.learning_rate import describe_change

N_RECENT = 20
_NUMBERS = [field.name for field in fields(IterationNumbers)]


_SETTINGS = {"schedule", "decay_length", "min_learning_rate_ratio"}
_SETTINGS |= {"weight_decay", "decay", "betas", "clip_norm"}


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
            line = f"{output}: continues after {n_done} iterations"
            print(escaped(line + _changes(output, config, n_done)), flush=True)
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

        `traces` are those of all ranks if they are to be written, or none; of the shards of a stage
        the first is written.
        """
        self.flush()
        record = self._record(numbers, measured_ms)
        self._writing = self._writer.submit(self._write, record, traces, samples)

    def _record(self, numbers: IterationNumbers, measured_ms: float) -> IterationRecord:
        """Record of an iteration that has just ended, with the numbers of all ranks.

        The time that is left is estimated from the last iterations, with all that happens between
        them, as evaluations and checkpoints.
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

    def note(self, iteration: int, notes: Sequence[str]) -> None:
        """Prints remarks about an iteration, after the lines of earlier ones."""
        for line in notes:
            self.print_line(f"iteration {iteration}: {line}")

    def print_line(self, line: str) -> None:
        """Prints a line, after those of the iterations so far."""
        self.flush()
        # In one piece, as the checkpoint writer prints at the same time.
        print(f"{line}\n", end="", flush=True)

    def _is_printed(self, record: IterationRecord) -> bool:
        is_end = record.iteration in (self._n_done, record.n_iterations - 1)
        is_skipped = not math.isfinite(record.gradient_norm)
        return is_end or is_skipped or (record.iteration + 1) % self._log_every == 0

    def add_evaluation(self, record: EvaluationRecord, *, is_best: bool) -> None:
        self.flush()
        self._lock.check()
        self._folder.add_evaluation(record)
        self._trackers.add(record.n_done, record.metrics)
        self.print_line(f"{_line_of(record)}{', the lowest since training began' * is_best}")

    def _write(
        self, record: IterationRecord, traces: Sequence[RankTrace], samples: Sequence[Sample]
    ) -> None:
        self._quiet_period.wait()
        self._lock.check()
        self._folder.add(record)
        self._trackers.add(record.iteration + 1, metrics(record))
        if self._is_printed(record):
            # The text is written in one piece, as the checkpoint writer prints at the same time.
            print(f"{log_line(record)}\n", end="", flush=True)
        if traces:
            self._trace(traces, samples)

    def _trace(self, traces: Sequence[RankTrace], samples: Sequence[Sample]) -> None:
        of_stages = traces[:: self._n_shards]
        plans, measured = [decode(data) for data, _ in of_stages], [trace for _, trace in of_stages]
        self._folder.add_trace(plans, measured, self._work.shares(plans, samples))

    def close(self) -> None:
        """Closes the run folder when all iterations are written."""
        self._quiet_period.end()
        self.flush()
        self._writer.shutdown()
        self._trackers.close()
        self._folder.close()


def _line_of(record: EvaluationRecord) -> str:
    if record.preferences:
        return (
            f"evaluation after {record.n_done} iterations: loss {record.loss:.4f}, "
            f"{describe_preferences(record.preferences)}, {record.tokens:,} pairs in "
            f"{record.took_ms:,.0f} ms"
        )
    return (
        f"evaluation after {record.n_done} iterations: loss {record.loss:.4f}, perplexity "
        f"{record.perplexity:,.4g}, {record.tokens:,} target tokens in {record.took_ms:,.0f} ms"
    )


def _changes(output: Path, config: ExperimentConfig, n_done: int) -> str:
    try:
        earlier = load_config(output / "config.toml").training
    except InputError:
        return ""
    before, now = _settings(earlier), _settings(config.training)
    notes = [describe_change(n_done, earlier, config.training)]
    notes += [
        f"training.{key} changes from {before[key]} to {now[key]}"
        for key in now
        if before[key] != now[key]
    ]
    return "".join(f"; {note}" for note in notes if note)


def _settings(training: TrainingConfig) -> dict[str, Any]:
    """Settings of updates, by key; the rate of a step does not show all of its schedule's."""
    return training.model_dump(mode="json", include=_SETTINGS)
