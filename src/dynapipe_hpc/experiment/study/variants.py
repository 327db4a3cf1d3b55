"""Variants of an experiment: other methods, and other ways to divide a model over its ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pydantic import ValidationError

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.config import EVERY_BATCH_RULE, BatchConfig, PlannerConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """A method and a division of the model over ranks.

    Attributes:
        method: Name of the method.
        planner: The [planner] table.
        cluster: The [cluster] table.
    """

    method: str
    planner: PlannerConfig
    cluster: Cluster

    @property
    def batch(self) -> BatchConfig:
        """The [planner.batch] table."""
        return self.planner.batch

    @property
    def setting(self) -> int | None:
        """Rows or tokens of a micro-batch, where the variant sets them; else None."""
        setting = getattr(self.batch, "setting", None)
        return setting if isinstance(setting, int) else None

    def of(self, config: ExperimentConfig) -> ExperimentConfig:
        """The experiment with these two tables.

        Layers are placed anew on another number of stages.

        Raises:
            InputError: The model cannot be divided in this way.
        """
        tables = config.model_dump(exclude_none=True, exclude={"study"})
        tables["planner"] = self.planner.model_dump(exclude_none=True)
        tables["cluster"] = self.cluster.model_dump()
        if self.cluster.n_stages != config.cluster.n_stages:
            tables["model"].pop("layers_per_stage", None)
        try:
            return ExperimentConfig.model_validate(tables)
        except ValidationError as error:
            messages = (each["msg"].removeprefix("Value error, ") for each in error.errors())
            raise InputError("; ".join(messages)) from None


def variants(config: ExperimentConfig) -> Iterator[Variant]:
    """Every batch rule on every division of the model over the configured number of ranks.

    The configured rule keeps its settings. There is ZeRO-1 where there are replicas.
    """
    configured = config.planner.batch
    rules = [configured if rule.rule == configured.rule else rule for rule in EVERY_BATCH_RULE]
    for cluster, batch in product(divisions(config.cluster), rules):
        planner = config.planner.model_copy(update={"batch": batch})
        for zero_stage in (0, 1) if cluster.n_replicas > 1 else (0,):
            each = cluster.model_copy(update={"zero_stage": zero_stage})
            yield Variant(batch.rule, planner, each)


def divisions(cluster: Cluster) -> Iterator[Cluster]:
    """Replicas x stages x shards of as many ranks."""
    n_ranks = cluster.n_ranks
    divisors = [n for n in range(1, n_ranks + 1) if n_ranks % n == 0]
    for n_replicas, n_stages in product(divisors, repeat=2):
        if n_ranks % (n_replicas * n_stages) == 0:
            n_shards = n_ranks // (n_replicas * n_stages)
            layout = {"n_replicas": n_replicas, "n_stages": n_stages, "n_shards": n_shards}
            yield cluster.model_copy(update=layout)
