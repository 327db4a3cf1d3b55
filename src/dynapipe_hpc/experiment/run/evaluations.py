"""Forward passes of all ranks of a run over samples: its evaluations, and its references.

The reference of preferences is a file of log-probabilities of answers by the model before training,
see docs/formats.md, "Reference log-probabilities".
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, assert_never

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.dataset_file import Dataset
from dynapipe_hpc.data.dataset.sampler import in_batches
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.open_run import LossHistory, OpenRun
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import decode, encode_plans, plans_hash
from dynapipe_hpc.report.records import EvaluationRecord, PreferenceMeans, TaskLoss
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.huggingface.origin import HASH_FACT
from dynapipe_hpc.training.objective import PreferenceLoss, losses_of_tables
from dynapipe_hpc.training.token_loader import TokenLoader

FloatArray = npt.NDArray[np.float64]

BATCHES_PER_RANK = 4
"""Batches that a rank plans before they are executed and the results are written."""
FORMAT, VERSION = "dynapipe-hpc reference", 1
_ORDER = "<f8"


@dataclass(frozen=True, slots=True)
class ReferenceFile:
    """A file of log-probabilities, which grows while they are computed."""

    path: Path
    fingerprint: str  # hash of the reference model, the samples and how they are used
    n_samples: int

    def read(self) -> FloatArray:
        """Log-probabilities known so far, shape (n_samples, 2); NaN where not yet known."""
        if not self.path.exists():
            return np.full((self.n_samples, 2), np.nan)
        line, _, data = read_input(self.path).partition(b"\n")
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if header != self._header(data) or len(data) != 16 * self.n_samples:
            raise InputError(
                f"{self.path}: is damaged, or belongs to other data or another model; remove it, "
                "and it is computed again"
            )
        return np.frombuffer(data, _ORDER).astype(np.float64).reshape(-1, 2)

    def write(self, log_probs: FloatArray) -> None:
        data = log_probs.astype(_ORDER).tobytes()
        line = json.dumps(self._header(data)).encode()
        with atomic_write(self.path) as temporary:
            temporary.write_bytes(line + b"\n" + data)

    def _header(self, data: bytes) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "n_samples": self.n_samples,
            "checksum": hashlib.blake2b(data, digest_size=16).hexdigest(),
        }


class ReferencePass(NamedTuple):
    dataset: Dataset
    batches: Sequence[Sequence[Sample]]
    file: ReferenceFile

    def missing(self, known: FloatArray) -> list[Sequence[Sample]]:
        """Batches in which some pairs have no log-probabilities among the known ones."""
        return [batch for batch in self.batches if np.isnan(known[ids_of(batch)]).any()]


def reference_passes(files: Experiment, weights_hash: str, output: Path) -> list[ReferencePass]:
    """References of the training dataset, and of the evaluated dataset if that is another one."""
    config, used, dataset = files.config, files.used, files.dataset
    samples = used.samples(used.kept, dataset.task_ids)
    batches = in_batches(samples, config.data.tokens_per_batch, config.cluster.n_replicas)
    file = _file(config, weights_hash, dataset, samples, output=output)
    passes = [ReferencePass(dataset, batches, file)]
    evaluation = files.evaluation
    if evaluation is not None and evaluation.dataset is not dataset:
        file = _file(config, weights_hash, evaluation.dataset, evaluation.samples, output=output)
        passes.append(ReferencePass(evaluation.dataset, evaluation.batches, file))
    return passes


def ids_of(samples: Sequence[Sample]) -> list[int]:
    return [sample.sample_id for sample in samples]


def _file(
    config: ExperimentConfig,
    weights_hash: str,
    dataset: Dataset,
    samples: Sequence[Sample],
    *,
    output: Path,
) -> ReferenceFile:
    contents = [file.content_sha256 for file in dataset.files]
    sizes = sorted(((k, v) for k, v in config.model.sizes.items() if k != "lora"), key=str)
    settings = [contents, config.data.long_samples, config.training.dtype, sizes]
    hasher = hashlib.sha256(weights_hash.encode())
    hasher.update(repr(settings).encode())
    numbers = [(s.sample_id, s.input_tokens, s.target_tokens, s.rejected_tokens) for s in samples]
    hasher.update(np.array(numbers, "<i8").tobytes())
    fingerprint = hasher.hexdigest()
    path = output / f"{dataset.files[0].path.name}.{fingerprint[:16]}.reference"
    return ReferenceFile(path, fingerprint, len(dataset.task_ids))


class StopAskedError(Exception):
    """The run was asked to stop during forward passes; all ranks raise it at the same batch."""

    def __init__(self, stop_signal: int) -> None:
        super().__init__(stop_signal)
        self.stop_signal = stop_signal


def plan_forward(
    job: Job, experiment: Experiment, batches: Sequence[Sequence[Sample]], what: str
) -> list[bytes]:
    """This rank's encoded plans of the forward passes of batches; all ranks together.

    The ranks take turns to plan batches, and then exchange the plans. Messages begin with `what`.
    """
    cluster, batch = experiment.config.cluster, experiment.config.planner.batch
    planner = experiment.planner.of_evaluation(batch)
    made = []
    with job.fail_together():
        for k in range(job.rank, len(batches), job.size):
            try:
                made.append(encode_plans(planner.make_plans(k, batches[k])))
            except InputError as error:
                raise InputError(f"{what}: {error}") from error
    shares = [[plans[cluster.plan_of(rank)] for plans in made] for rank in range(job.size)]
    received = job.exchange(shares)
    plans = [received[k % job.size][k // job.size] for k in range(len(batches))]
    for k, plan in enumerate(plans):
        check_same_plans(job, k, plans_hash(plan))
    return plans


def run_forward(
    rank: Rank,
    loader: TokenLoader,
    samples: Sequence[Sample],
    plans: Sequence[bytes],
    *,
    n_done: int,
) -> FloatArray:
    """Executes this rank's encoded plans of samples without backward passes; all ranks together.

    Returns the table of the samples, see `ModuleStage.evaluating`, on all ranks. Raises
    `StopAskedError`.
    """
    job = rank.job
    with rank.stage.evaluating(loader, samples) as table:
        for data in plans:
            # All ranks stop at the same batch, or those that continue would wait forever.
            [stop_signal] = job.all_reduce_max([job.stop.asked])
            if stop_signal:
                raise StopAskedError(int(stop_signal))
            rank.run_forward(n_done, decode(data))
        own_table = table * rank.reports_loss
    # Every sample was computed by one replica, so that the order of sums does not matter.
    return np.array(job.all_reduce_sum(own_table.flatten().tolist())).reshape(2, -1)


def train_preferences(rank: Rank, experiment: Experiment, run: OpenRun) -> FloatArray:
    """Lets the stage of this rank train on preference pairs; all ranks together.

    When a run begins, the weights of the rank are the weights of the reference.

    Returns the reference of the dataset that is evaluated, see `find_reference`.
    """
    with rank.job.fail_together():
        passes = reference_passes(experiment, str(run.facts[HASH_FACT]), run.output)
    begins = run.point is None
    tables = [find_reference(rank, experiment, each, begins=begins) for each in passes]
    config = experiment.config.training.preference_loss
    assert config is not None  # noqa: S101 - types
    rank.stage.train_preferences(PreferenceLoss(config, tables[0], rank.device))
    return tables[-1]  # of the evaluated dataset, or of the only one


def find_reference(
    rank: Rank, experiment: Experiment, reference: ReferencePass, *, begins: bool
) -> FloatArray:
    """Log-probabilities of pairs' answers by the model before training; all ranks together.

    They are read from a file. If the run `begins`, missing ones are computed by plans of forward
    passes and written to the file, from which an interrupted run continues.

    Shape (samples of the dataset, 2), NaN for other samples. Raises `StopAskedError`; `SystemExit`:
    The file cannot be used, or a batch cannot be planned; the first rank has said why.
    """
    job = rank.job
    file = reference.file

    def read() -> FloatArray:
        known = file.read()
        if not begins and reference.missing(known):
            raise InputError(
                f"{file.path}: lacks log-probabilities by the model before training, which this "
                "run no longer has; restore the file, or start the same configuration in another "
                "run folder, which makes the file before its first iteration, and copy it from "
                "there"
            )
        return known

    known = job.on_first(read)
    if not (missing := reference.missing(known)):
        return known
    started_s = time.perf_counter()
    job.say(f"reference: {len(missing):,} batches, into {file.path}")
    loader = rank.open_loader(reference.dataset)
    at_once = BATCHES_PER_RANK * job.size
    for first in range(0, len(missing), at_once):
        group = missing[first : first + at_once]
        samples = [sample for batch in group for sample in batch]
        plans = plan_forward(job, experiment, group, "reference")
        loader.start_iteration(samples)
        log_probs = run_forward(rank, loader, samples, plans, n_done=0)
        known[ids_of(samples)] = log_probs.T
        job.on_first(lambda: file.write(known))
    took_s = time.perf_counter() - started_s
    n_pairs = sum(map(len, missing))
    n_before = sum(map(len, reference.batches)) - n_pairs
    before = f", {n_before:,} before" if n_before else ""
    job.say(f"reference: {n_pairs:,} pairs in {took_s:,.1f} s{before}")
    return known


class Evaluations:
    """Evaluations of a run, if it has any. All ranks make the same calls.

    `were_interrupted` says whether the run was asked to stop while it evaluated; `history` has the
    losses so far, and whether training should end.
    """

    def __init__(
        self,
        rank: Rank,
        experiment: Experiment,
        *,
        history: LossHistory | None,
        log: RunLog | None,
        reference: FloatArray | None = None,
    ) -> None:
        """Plans the batches; continues after the evaluations in `history`.

        `log` is the first rank's log. Preference pairs need their `reference`, see
        `find_reference`.
        """
        self._rank, self._log, self.history = rank, log, history or LossHistory(0)
        self._config, self._reference = experiment.config, reference
        self.were_interrupted = False
        if evaluated := experiment.evaluation:
            self._samples, self._names = evaluated.samples, evaluated.dataset.header.task_names
            self._loader = rank.open_loader(evaluated.dataset)
            self._loader.start_iteration(self._samples)
            # All evaluations of a run have the same samples, so they have the same plans.
            self._plans = plan_forward(rank.job, experiment, evaluated.batches, "evaluation")

    def run_if_due(self, n_done: int) -> int:
        """Evaluates if that is due; returns the signal that asked the run to stop meanwhile, or 0.

        An evaluation in which the run is asked to stop has no result. It is repeated when the run
        continues.
        """
        table = self._config.evaluation
        if table is None or n_done in self.history:
            return 0
        if not table.is_due(n_done, self._config.training.n_iterations):
            return 0
        try:
            result = self.evaluate(n_done)
        except StopAskedError as stop:
            self.were_interrupted = True
            return stop.stop_signal
        is_best = self.history.add(n_done, result.loss)
        if self._log:
            self._log.add_evaluation(result, is_best=is_best)
            if self.history.is_over:
                self._log.print_line(f"training ends early: {self.history.describe()}")
        return 0

    def evaluate(self, n_done: int) -> EvaluationRecord:
        """Evaluates the current weights, on all ranks together; all return the record.

        Raises `StopAskedError`.
        """
        started_s = time.perf_counter()
        table = run_forward(self._rank, self._loader, self._samples, self._plans, n_done=n_done)
        took_ms = self._rank.job.broadcast(1e3 * (time.perf_counter() - started_s))
        means = None
        training = self._config.training
        if self._reference is not None and (config := training.preference_loss):
            known = self._reference[ids_of(self._samples)]
            lengths = [(each.target_tokens, each.rejected_tokens) for each in self._samples]
            losses, numbers = losses_of_tables(table.T, known, lengths, config)
            means = PreferenceMeans.from_sums(numbers, len(self._samples))
            table = np.stack([losses, np.ones_like(losses)])
        sums, counts = table
        by_task = task_losses(self._samples, sums, counts)
        named = {self._names[task]: loss for task, loss in sorted(by_task.items())}
        loss = mean_loss(sums, counts, by_task.values(), training.loss_weighting)
        return EvaluationRecord(n_done, loss, took_ms, named, means)


def mean_loss(
    sums: FloatArray, counts: FloatArray, tasks: Collection[TaskLoss], weighting: LossWeighting
) -> float:
    """Loss of an evaluation in which units have equal weight, see `token_weights`.

    `sums`, `counts`: Sum of the losses and number of target tokens of each sample, (n_samples,).
    """
    match weighting:
        case "token":
            return float(sums.sum() / counts.sum())
        case "sample":
            return float((sums / counts).mean())
        case "task":
            return sum(task.loss for task in tasks) / len(tasks)
        case _:
            assert_never(weighting)


def task_losses(
    samples: Sequence[Sample], sums: FloatArray, counts: FloatArray
) -> dict[int, TaskLoss]:
    """Losses by task id; `sums` and `counts` as for `mean_loss`."""
    losses, tokens = Counter[int](), Counter[int]()
    for sample, loss, count in zip(samples, sums.tolist(), counts.tolist(), strict=True):
        losses[sample.task_id] += loss
        tokens[sample.task_id] += int(count)
    return {task: TaskLoss(losses[task] / n, n) for task, n in tokens.items()}
