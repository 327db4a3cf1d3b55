"""Variants of an experiment: other batch rules, and other ways to divide a model over its ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pydantic import ValidationError

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.config import EVERY_BATCH_RULE, BatchConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """A batch rule and a division of the model over ranks.

    Attributes:
        batch: The [planner.batch] table.
        cluster: The [cluster] table.
    """

    batch: BatchConfig
    cluster: Cluster

    def of(self, config: ExperimentConfig) -> ExperimentConfig:
        """The experiment with these two tables.

        Layers are placed anew on another number of stages.

        Raises:
            InputError: The model cannot be divided in this way.
        """
        tables = config.model_dump(exclude_none=True)
        tables["planner"]["batch"] = self.batch.model_dump()
        tables["cluster"] = self.cluster.model_dump()
        if self.cluster.n_stages != config.cluster.n_stages:
            tables["model"].pop("layers_per_stage", None)
        try:
            return ExperimentConfig.model_validate(tables)
        except ValidationError as error:
            told = (each["msg"].removeprefix("Value error, ") for each in error.errors())
            raise InputError("; ".join(told)) from None


def variants(config: ExperimentConfig) -> Iterator[Variant]:
    """Every batch rule on every division of the model over the configured number of ranks.

    The configured rule keeps its settings.
    """
    configured = config.planner.batch
    rules = [configured if rule.rule == configured.rule else rule for rule in EVERY_BATCH_RULE]
    for cluster, batch in product(_clusters(config.cluster), rules):
        yield Variant(batch, cluster)


def _clusters(cluster: Cluster) -> Iterator[Cluster]:
    """Replicas x stages x shards of as many ranks; with ZeRO-1 where there are replicas."""
    n_ranks = cluster.n_ranks
    divisors = [n for n in range(1, n_ranks + 1) if n_ranks % n == 0]
    for n_replicas, n_stages in product(divisors, repeat=2):
        if n_ranks % (n_replicas * n_stages):
            continue
        layout = {
            "n_replicas": n_replicas,
            "n_stages": n_stages,
            "n_shards": n_ranks // (n_replicas * n_stages),
        }
        for zero_stage in (0, 1) if n_replicas > 1 else (0,):
            yield cluster.model_copy(update={**layout, "zero_stage": zero_stage})
