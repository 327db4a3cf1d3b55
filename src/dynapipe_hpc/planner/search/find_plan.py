"""Finds the plan of an iteration: constructs many by rules, and improves the best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.space import ConstructedPlan, ImprovedPlan, SearchSpace

N_KEPT = 4
"""How many constructed plans are kept in every order of the samples."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The plan that was found, and what it was found from.

    Attributes:
        replicas: Per replica its micro-batches, in the order in which they enter the pipeline.
        plan: Its numbers.
        constructed: By order of the samples, plans that rules make, best first.
    """

    replicas: list[list[MicroBatch]]
    plan: ImprovedPlan
    constructed: dict[str, list[ConstructedPlan]]


def find_plan(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    config: SearchConfig,
    *,
    split_backward: bool,
) -> Found:
    """Looks for the micro-batches, their order, modes and replicas that finish soonest.

    In every order of the samples plans are constructed and simulated; those in the best order
    are improved.

    Args:
        samples: Of the iteration, in any order.
        cost: Predicts time and memory.
        cluster: Whose memory limits what may be in flight, and whose link takes time.
        config: How hard to look.
        split_backward: Whether the schedule may give gradients of weights passes of their own.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
        TooFewMicroBatchesError: There are fewer samples than replicas.
    """
    if len(samples) < cluster.n_replicas:
        raise TooFewMicroBatchesError.of(len(samples), cluster.n_replicas)
    spaces = dict(_spaces(samples, cost, cluster, split_backward=split_backward))
    constructed = {
        order: space.construct(cluster.n_replicas, N_KEPT, n_starts(config))
        for order, space in spaces.items()
    }
    best = min(constructed, key=lambda order: constructed[order][0].makespan_ms)
    starts = [plan.replicas for plan in constructed[best][: n_starts(config)]]
    plan = spaces[best].improve(starts, config.effort, config.seed)
    return Found(spaces[best].microbatches(plan.replicas), plan, constructed)


def n_starts(config: SearchConfig) -> int:
    """How many constructed plans the local search begins with: more only if there is time."""
    return min(1 + config.effort // 500_000, N_KEPT)


def _spaces(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, split_backward: bool
) -> Iterator[tuple[str, SearchSpace]]:
    room_bytes = activation_room_bytes(cost, cluster)
    for order, ordered in orders(samples, cost.is_encoder_decoder).items():
        windows = candidates(ordered, cost, cluster)
        yield order, SearchSpace(windows, room_bytes, cluster.link, split_backward)
