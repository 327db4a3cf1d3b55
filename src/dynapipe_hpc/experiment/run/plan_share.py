"""The iterations that a rank plans, and how it makes their plans."""

from collections.abc import Sequence

from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.online_costs import Costs
from dynapipe_hpc.experiment.run.plan_ahead import PlanAhead, PlanningFacts
from dynapipe_hpc.experiment.run.quiet_period import QuietPeriod
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.store.plan_store import PlanStore


def plan_share(
    job: Job,
    experiment: Experiment,
    store: PlanStore,
    iterations: range,
    *,
    costs: Costs,
    quiet_period: QuietPeriod,
) -> PlanAhead:
    """Planning of this rank's share of the iterations, none of which begins in a quiet period.

    Args:
        job: The ranks.
        experiment: The experiment.
        store: Store of the plans, which says who plans an iteration.
        iterations: Iterations that are left.
        costs: Costs that iterations are planned by.
        quiet_period: Time between iterations.
    """

    def make_plans(iteration: int) -> tuple[Sequence[RankPlan], PlanningFacts]:
        planner = costs.planner(iteration)  # waits for earlier iterations if costs are corrected
        quiet_period.wait()
        samples = experiment.sampler.iteration(iteration)
        choice = planner.choose(samples)
        facts = PlanningFacts(
            longest_trip_ms=planner.longest_trip_ms(choice, samples),
            outlier=planner.outlier(choice, samples),
        )
        return planner.write(iteration, choice), facts

    share = [iteration for iteration in iterations if store.planner_of(iteration) == job.rank]
    plan_of_rank = [experiment.config.cluster.plan_of(rank) for rank in range(job.size)]
    return PlanAhead(make_plans, store, share, plan_of_rank)
