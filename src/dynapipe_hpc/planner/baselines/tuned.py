"""A baseline at its best setting, found anew for every batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.packed_rows import packed_tokens
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel

MIN_BUDGET = 1 / 8
"""Smallest token budget that is tried, in longest samples of the batch."""

Settings = Callable[[Sequence[Sample], CostModel, Cluster], Iterable[int]]
"""Settings to try for a batch, ascending: rows or tokens of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Plans an iteration by one baseline with each of its settings.

    Attributes:
        chooser_with: The baseline with a setting, for the same costs and cluster.
        settings: Settings to try.
        cost: Predicts time and memory.
        cluster: What the plans are for.
    """

    chooser_with: Callable[[int], Chooser]
    settings: Settings
    cost: CostModel
    cluster: Cluster

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of all settings whose micro-batches fit, see `Chooser`.

        Raises:
            DoesNotFitError, NotMeasuredError: There is none; the error is that of the smallest.
        """
        tried: list[Candidate | Infeasible] = []
        failures: list[InputError] = []
        for setting in self.settings(samples, self.cost, self.cluster):
            try:
                tried += self.chooser_with(setting).choose(samples).tried
            except (DoesNotFitError, NotMeasuredError) as error:
                failures.append(error)
        if not tried:
            raise failures[0]
        return Choice(tuple(tried))


def row_counts(samples: Sequence[Sample], _: CostModel, cluster: Cluster) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ... rows, up to all samples of a replica."""
    most = -(-len(samples) // cluster.n_replicas)
    steps = (n for k in count() for n in (2**k, 3 * 2**k // 2))
    last = 0
    for n in steps:
        if n > last:
            yield min(n, most)
            last = n
        if n >= most:
            return


def budgets(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[int]:
    """Budgets of padded tokens, up to all samples of a replica as long as the longest."""
    lengths = row_lengths(samples, cost.is_encoder_decoder)
    longest = int((lengths.row_tokens + lengths.target_tokens).max())
    return _rising(longest, most=longest * -(-len(samples) // cluster.n_replicas))


def packed_budgets(samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Iterator[int]:
    """Budgets of tokens of packed rows, up to those of a replica, or of the longest sample."""
    tokens = packed_tokens(samples, cost)
    longest, of_replica = int(tokens.max()), -(-int(tokens.sum()) // cluster.n_replicas)
    return _rising(longest, most=max(longest, of_replica))


def _rising(longest: int, most: int) -> Iterator[int]:
    """Numbers of tokens a fourth root of 2 apart, from a share of the longest sample on."""
    last = 0
    for k in count():
        budget = min(int(MIN_BUDGET * longest * 2 ** (k / 4)), most)
        if budget > last:
            yield budget
            last = budget
        if budget == most:
            return
