"""Orders of micro-batches that the authors' planner tries."""

from collections.abc import Iterator
from itertools import permutations

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, StageCosts

Labels = npt.NDArray[np.int64]

STARTS = 10
ROUNDS = 30  # of Lloyd's algorithm; a few dozen micro-batches settle in less
FEW = 20  # up to this many micro-batches there are four clusters, otherwise three


def injection_orders(costs: StageCosts, seed: int) -> Iterator[IntArray]:
    """The given order, then all permutations of clusters of micro-batches of similar time.

    Within a cluster, micro-batches are shuffled again for every permutation.

    Args:
        costs: Costs of a replica's micro-batches, finite.
        seed: Seed of the shuffling.

    Yields:
        Indices of the micro-batches, shape (n_microbatches,).

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, and its artifact,
        which shuffles without a seed.
    """
    n_microbatches = costs.n_microbatches
    yield np.arange(n_microbatches)
    random = np.random.default_rng(seed)
    passes = (costs.forward_ms, costs.backward_ms)
    features = np.stack([ms[:, stage] for ms in passes for stage in (0, -1)], axis=1)
    labels = k_means(features, 4 if n_microbatches <= FEW else 3, random)
    clusters = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for order in permutations(clusters):
        yield np.concatenate([random.permutation(cluster) for cluster in order])


def k_means(points: FloatArray, k: int, random: np.random.Generator) -> Labels:
    """The tightest clusters that Lloyd's algorithm finds from several random starts.

    Args:
        points: The points, shape (n_points, n_features), finite.
        k: Most clusters; fewer if there are fewer distinct points.
        random: Generator that draws the starts.

    Returns:
        A number below k for every point; equal ones form a cluster.

    Source:
        Arthur and Vassilvitskii, "k-means++", SODA 2007: a centre is the likelier to be drawn, the
        farther it is from those before.
    """
    clusterings = [_lloyd(points, _drawn_centres(points, k, random)) for _ in range(STARTS)]
    return min(clusterings, key=lambda clusters: clusters[0])[1]


def _drawn_centres(points: FloatArray, k: int, random: np.random.Generator) -> FloatArray:
    centres = points[[random.integers(len(points))]]
    while len(centres) < k and (nearest := _distances(points, centres).min(axis=1)).any():
        drawn = random.choice(len(points), p=nearest / nearest.sum())
        centres = np.concatenate([centres, points[[drawn]]])
    return centres


def _lloyd(points: FloatArray, centres: FloatArray) -> tuple[float, Labels]:
    """Sum of squared distances, and the label of every point."""
    for _ in range(ROUNDS):
        labels: Labels = _distances(points, centres).argmin(axis=1)
        for label in np.unique(labels):
            centres[label] = points[labels == label].mean(axis=0)
    return float(_distances(points, centres).min(axis=1).sum()), labels


def _distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Squared distances, shape (n_points, n_centres)."""
    return np.asarray(((points[:, np.newaxis] - centres) ** 2).sum(axis=2))
