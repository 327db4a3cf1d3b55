"""The spaces in which plans of an iteration are searched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.replicas import TooFewMicroBatchesError
from dynapipe_hpc.planner.batch.windows.price_windows import price_bundled_windows
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.search.space import SearchSpace


def search_spaces(
    samples: Sequence[Sample], cost: CostModel, cluster: Cluster, *, split_backward: bool
) -> Iterator[Mapping[str, SearchSpace]]:
    """Search spaces with all modes of recomputation together, then with each mode alone.

    The search of a mode alone equals the search if only that mode were allowed, so allowing more
    modes never gives a worse plan. Modes in which some sample cannot run are left out.

    Args:
        samples: Samples of the iteration, in any order.
        cost: Cost model.
        cluster: The cluster, with memory limit and link.
        split_backward: Whether weight gradients may have separate passes.

    Yields:
        The spaces by order of the samples, the plainest first.

    Raises:
        DoesNotFitError, NotMeasuredError: A sample cannot run.
        TooFewMicroBatchesError: There are fewer samples than replicas.
    """
    if len(samples) < cluster.n_replicas:
        raise TooFewMicroBatchesError.of(len(samples), cluster.n_replicas)
    room_bytes = activation_room_bytes(cost, cluster)
    spaces = {
        order: SearchSpace(
            price_bundled_windows(ordered, cost, cluster), room_bytes, cluster.link, split_backward
        )
        for order, ordered in orders(samples, cost.is_encoder_decoder).items()
    }
    yield spaces
    modes = range(len(cost.recompute_modes))
    for mode in modes if len(modes) > 1 else ():
        alone = {order: _in_mode(space, mode) for order, space in spaces.items()}
        if all(space.windows.every_sample_runs for space in alone.values()):
            yield alone


def _in_mode(space: SearchSpace, mode: int) -> SearchSpace:
    return replace(space, windows=space.windows.in_mode(mode))
