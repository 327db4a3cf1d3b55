"""Forward passes of all ranks over samples, for evaluations and references of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import decode, encode_plans, plans_hash
from dynapipe_hpc.training.token_loader import TokenLoader

FloatArray = npt.NDArray[np.float64]


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
