"""Forward passes of all ranks over samples, for evaluations and references of a run."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.reference_pass import ReferencePass, ids_of, reference_passes
from dynapipe_hpc.experiment.run.open_run import OpenRun
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.experiment.run.resume import together
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import decode, encode_plans, plans_hash
from dynapipe_hpc.training.preferences import PreferenceLoss
from dynapipe_hpc.training.token_loader import TokenLoader

FloatArray = npt.NDArray[np.float64]

BATCHES_PER_RANK = 4
"""Batches that a rank plans before they are executed; then what is known is written."""


def plan_forward(
    job: Job, experiment: Experiment, batches: Sequence[Sequence[Sample]], what: str
) -> list[bytes]:
    """This rank's encoded plans of the forward passes of batches; all ranks together.

    The ranks take turns to plan batches, and then exchange the plans. Messages say `what` for.
    """
    cluster, planner = experiment.config.cluster, experiment.forward_planner
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
    loader: TokenLoader[Any],
    samples: Sequence[Sample],
    plans: Sequence[bytes],
    *,
    n_done: int,
) -> FloatArray | int:
    """Executes this rank's encoded plans of samples without backward passes; all ranks together.

    Returns the table of the samples, see `ModuleStage.evaluating`, on all ranks; or the signal if
    the run was asked to stop meanwhile.
    """
    job = rank.job
    with rank.stage.evaluating(loader, samples) as table:
        for data in plans:
            # All ranks stop at the same batch, or those that go on would wait forever.
            [stop_signal] = job.all_reduce_max([job.stop.asked])
            if stop_signal:
                return int(stop_signal)
            rank.run_forward(n_done, data, decode(data))
        own_table = table * rank.reports_loss
    # Every sample was computed by one replica, so that the order of sums does not matter.
    return np.array(job.all_reduce_sum(own_table.flatten().tolist())).reshape(2, -1)


class References(NamedTuple):
    """Log-probabilities of answers by the model before training, by sample id.

    There is a table of the dataset that is trained on, and one of that evaluated, if any is.
    """

    trained: FloatArray
    evaluated: FloatArray | None


def train_preferences(rank: Rank, experiment: Experiment, run: OpenRun) -> References | int:
    """Lets the stage of this rank train on preference pairs; all ranks together.

    If the run begins, the weights of the rank are those of the reference.

    Returns the reference; or the signal if the run was asked to stop meanwhile.
    """
    with rank.job.fail_together():
        passes = reference_passes(experiment, run.weights_hash, run.output)
    tables = []
    for each in passes:
        table = find_reference(rank, experiment, each, begins=run.point is None)
        if isinstance(table, int):
            return table
        tables.append(table)
    config = experiment.config.training.preference_loss
    assert config is not None  # noqa: S101 - types
    rank.stage.train_preferences(PreferenceLoss.from_table(config, tables[0], rank.device))
    return References(tables[0], tables[-1] if experiment.evaluation else None)


def find_reference(
    rank: Rank, experiment: Experiment, reference: ReferencePass, *, begins: bool
) -> FloatArray | int:
    """Log-probabilities of the answers of pairs by the model before training; all together.

    They are read from a file. What is missing there is computed by plans of forward passes and
    written to it, if the run `begins`, so that an interrupted one continues from there.

    Shape (samples of the dataset, 2), NaN for others; or the signal if the run was asked to stop
    meanwhile.

    Raises `SystemExit`: The file cannot be used, or a batch cannot be planned; the first rank has
    said why.
    """
    job = rank.job
    file = reference.file
    with job.fail_together():
        known = together(job, lambda: file.read() if job.is_first else np.empty(0))
        missing = reference.missing(known)
        if missing and not begins:
            raise reference.lack_error()
    if not missing:
        return known
    started_s = time.perf_counter()
    if job.is_first:
        print(escaped(f"reference: {len(missing):,} batches, into {file.path}"), flush=True)
    loader = rank.open_loader(reference.dataset)
    at_once = BATCHES_PER_RANK * job.size
    for first in range(0, len(missing), at_once):
        group = missing[first : first + at_once]
        samples = [sample for batch in group for sample in batch]
        plans = plan_forward(job, experiment, group, "reference")
        loader.start_iteration(samples)
        log_probs = run_forward(rank, loader, samples, plans, n_done=0)
        if isinstance(log_probs, int):  # an exit code
            return log_probs
        known[ids_of(samples)] = log_probs.T
        with job.fail_together():
            if job.is_first:
                file.write(known)
    if job.is_first:
        took_s = time.perf_counter() - started_s
        n_pairs = sum(map(len, missing))
        n_before = reference.n_pairs - n_pairs
        before = f", {n_before:,} before" if n_before else ""
        print(f"reference: {n_pairs:,} pairs in {took_s:,.1f} s{before}", flush=True)
    return known
