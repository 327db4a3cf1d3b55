"""Plans of forward passes: of the evaluations of a run, and of its reference."""

from collections.abc import Sequence

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.same_plans import check_same_plans
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import encode_plans, plans_hash


def plan_forward(
    job: Job, experiment: Experiment, batches: Sequence[Sequence[Sample]], what: str
) -> list[bytes]:
    """This rank's encoded plans of the forward passes of batches; all ranks together.

    The ranks take turns to plan batches, and then exchange the plans.

    Args:
        job: The ranks.
        experiment: The experiment.
        batches: Batches of samples.
        what: Purpose of the passes, for messages.

    Raises:
        SystemExit: A batch cannot be planned; the first rank has said why.
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
