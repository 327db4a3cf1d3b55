"""A baseline at its best setting, found anew for every batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.batch_rule import BatchRule
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.choose.best_of_rules import BestOfRules
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

SMALLEST_BUDGET = 1 / 8
"""Smallest token budget that is tried, in longest samples of the batch."""

Settings = Callable[[Sequence[Sample], CostModel, Cluster], Iterable[int]]
"""Settings to try for a batch, ascending: rows or tokens of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Plans an iteration by one batch rule with each of its settings.

    Attributes:
        rule_with: The batch rule with a setting.
        settings: Settings to try.
        schedule_rules: Ways to order passes, all of which are tried.
        cost: Predicts time and memory.
        cluster: What the plans are for.
    """

    rule_with: Callable[[int], BatchRule]
    settings: Settings
    schedule_rules: Sequence[ScheduleRule]
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
            rules = [self.rule_with(setting)]
            best = BestOfRules(rules, self.schedule_rules, self.cost, self.cluster)
            try:
                tried += best.choose(samples).tried
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
    """Token budgets a factor of the root of 2 apart, up to all samples of a replica."""
    lengths = row_lengths(samples, cost.is_encoder_decoder)
    longest = int((lengths.row_tokens + lengths.target_tokens).max())
    most = longest * -(-len(samples) // cluster.n_replicas)
    for k in count():
        budget = int(SMALLEST_BUDGET * longest * 2 ** (k / 2))
        yield min(budget, most)
        if budget >= most:
            return
