"""Refinement of the replicas that all others wait for."""

from dataclasses import replace

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Candidate
from dynapipe_hpc.planner.schedule.pipeline import refine_pipeline
from dynapipe_hpc.planner.schedule.update import reduced_ms


def refine_slowest(candidate: Candidate, cluster: Cluster, n_passes: int, seed: int) -> Candidate:
    """Refines the slowest replica, then the next, until the slowest one has been refined.

    The iteration ends as if all were refined. Passes of other replicas, and so the makespan of the
    plan, may end later than they could, but no update waits for them.

    Args:
        candidate: A plan within the memory limits.
        cluster: Cluster for which it was scheduled.
        n_passes: Most passes to simulate, of which every replica has an equal share.
        seed: Seed of the random moves.
    """
    pipelines = list(candidate.pipelines)
    ends_ms = [reduced_ms(pipeline.timeline, candidate.cost) for pipeline in pipelines]
    replicas = range(len(pipelines))
    as_they_were = set(replicas)
    share = n_passes // len(pipelines)
    while (slowest := max(replicas, key=ends_ms.__getitem__)) in as_they_were:
        as_they_were.remove(slowest)
        refined = refine_pipeline(
            pipelines[slowest], candidate.cost, cluster, n_passes=share, seed=seed
        )
        pipelines[slowest] = refined
        ends_ms[slowest] = reduced_ms(refined.timeline, candidate.cost)
    return replace(candidate, pipelines=pipelines)
