"""A baseline with its setting or, if that is "tuned", at its best one for every batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.config import (
    BaselineConfig,
    DensePackingConfig,
    RowCountConfig,
)
from dynapipe_hpc.planner.baselines.every_mode import in_every_mode
from dynapipe_hpc.planner.baselines.grouping import Grouping
from dynapipe_hpc.planner.baselines.packed_rows import (
    packed_balanced,
    packed_next_fit,
    packed_tokens,
)
from dynapipe_hpc.planner.baselines.padded_rows import dense_packing, naive_padding, token_budget
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.schedule_replicas import ReplicaScheduler
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

MIN_BUDGET = 1 / 8
"""Smallest token budget that is tried, in longest samples of the batch."""

Settings = Callable[[Sequence[Sample], CostModel, Cluster], Iterable[int]]
"""Settings to try for a batch, ascending: rows or tokens of a micro-batch."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plans an iteration by a baseline with each of its settings, in every mode.

    Attributes:
        config: The [planner.batch] table.
        schedule_rules: Ways to order passes, all of which are tried.
        cluster: What the plans are for.
    """

    config: BaselineConfig
    schedule_rules: Sequence[ScheduleRule]
    cost: CostModel
    cluster: Cluster

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of all modes, and all settings whose micro-batches fit, see `Chooser`.

        Raises:
            DoesNotFitError, NotMeasuredError: There is none; the error is that of the smallest
                setting in the last mode.
        """
        return in_every_mode(self.cost, lambda cost: self._choose_in_mode(samples, cost))

    def _choose_in_mode(self, samples: Sequence[Sample], cost: CostModel) -> Choice:
        config, cluster = self.config, self.cluster
        grouping, settings_to_try = GROUPINGS[config.rule]
        if isinstance(config, DensePackingConfig):
            grouping = partial(
                dense_packing, row_tokens=config.row_tokens, target_tokens=config.target_tokens
            )
        settings: Iterable[int] = (
            settings_to_try(samples, cost, cluster)
            if config.setting == "tuned"
            else [config.setting]
        )
        scheduler = ReplicaScheduler(cost, cluster, self.schedule_rules)
        tried: list[Candidate | Infeasible] = []
        failures: list[InputError] = []
        for setting in settings:
            try:
                replicas = grouping(samples, cost, cluster, setting)
            except (DoesNotFitError, NotMeasuredError) as error:
                failures.append(error)
                continue
            costs = [microbatch_costs(microbatches, cost) for microbatches in replicas]
            tried.append(scheduler.schedule(describe(config, setting), replicas, costs))
        if not tried:
            raise failures[0]
        return Choice(tuple(tried))


def describe(config: BaselineConfig, setting: int) -> str:
    """A baseline and its settings."""
    unit = "rows" if isinstance(config, RowCountConfig) else "tokens"
    text = f"{config.rule.replace('_', ' ')}, {setting} {unit}"
    if isinstance(config, DensePackingConfig):
        text += f" of {config.row_tokens} tokens" if config.row_tokens else ""
        text += f", targets of {config.target_tokens}" if config.target_tokens else ""
    return text


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


GROUPINGS: Mapping[str, tuple[Grouping, Settings]] = {
    "naive_padding": (naive_padding, row_counts),
    "dense_packing": (dense_packing, row_counts),
    "token_budget": (token_budget, budgets),
    "packed_next_fit": (packed_next_fit, packed_budgets),
    "packed_balanced": (packed_balanced, packed_budgets),
}
"""Ways to group samples by the names of their tables, each with the settings to try."""
