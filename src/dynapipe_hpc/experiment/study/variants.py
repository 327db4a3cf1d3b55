"""Variants of an experiment: methods, settings, and divisions of the model over ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pydantic import ValidationError

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import with_tables
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.config import EVERY_BATCH_RULE, BatchConfig, PlannerConfig

ROWS_KEY, TOKENS_KEY = "rows_per_microbatch", "tokens_per_microbatch"

ROWS = tuple(2**k for k in range(7))
"""Rows of a micro-batch that are tried."""

TOKENS = tuple(2.0**k for k in range(-2, 4))
"""Tokens of a micro-batch that are tried, in units of data.max_tokens."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A method, and the [planner] and [cluster] tables that it has."""

    method: str
    planner: PlannerConfig
    cluster: Cluster

    @property
    def batch(self) -> BatchConfig:
        return self.planner.batch

    @property
    def setting(self) -> int | None:
        """Rows or tokens of a micro-batch, where the variant sets them; else None."""
        setting = getattr(self.batch, "setting", None)
        return setting if isinstance(setting, int) else None

    def of(self, config: ExperimentConfig) -> ExperimentConfig:
        """The experiment with these two tables; other numbers of stages place layers anew."""
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


def methods_of(config: ExperimentConfig) -> list[Variant]:
    """The methods of the [study] table, or the configured one, named like its batch rule."""
    if not config.study.methods:
        return [Variant(config.planner.batch.rule, config.planner, config.cluster)]
    configs = {
        each.name: with_tables(
            config,
            f"study.methods, '{each.name}'",
            {"planner": each.planner, "cluster": each.cluster},
        )
        for each in config.study.methods
    }
    return [Variant(name, each.planner, each.cluster) for name, each in configs.items()]


def variants(config: ExperimentConfig) -> Iterator[Variant]:
    """Every batch rule on every division of the model over the configured number of ranks.

    The configured rule keeps its settings. There is ZeRO-1 where there are replicas.
    """
    configured = config.planner.batch
    methods: dict[str, BatchConfig] = {rule.rule: rule for rule in EVERY_BATCH_RULE}
    methods[configured.rule] = configured
    for cluster, (method, batch) in product(divisions(config.cluster), methods.items()):
        planner = config.planner.model_copy(update={"batch": batch})
        for zero_stage in (0, 1) if cluster.n_replicas > 1 else (0,):
            each = cluster.model_copy(update={"zero_stage": zero_stage})
            yield Variant(method, planner, each)


def divisions(cluster: Cluster) -> Iterator[Cluster]:
    n_ranks = cluster.n_ranks
    divisors = [n for n in range(1, n_ranks + 1) if n_ranks % n == 0]
    for n_replicas, n_stages in product(divisors, repeat=2):
        if n_ranks % (n_replicas * n_stages) == 0:
            n_shards = n_ranks // (n_replicas * n_stages)
            layout = {"n_replicas": n_replicas, "n_stages": n_stages, "n_shards": n_shards}
            yield cluster.model_copy(update=layout)


def grid(config: ExperimentConfig) -> list[list[Variant]]:
    """Every method of the [study] table with every division and setting.

    Numbers of replicas, stages and shards are powers of two, and shards are in one node. A baseline
    that is to be tuned is planned with every setting and every single mode of recomputation, each
    for the entire run, as one would start it. Other methods choose both by themselves.

    Returns:
        Groups of variants that differ in setting and mode only, both ascending.

    Raises:
        InputError: The number of ranks is no power of two, or a method cannot be configured.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, section 8 (Baselines).
    """
    n_ranks, most_shards = config.cluster.n_ranks, config.study.ranks_per_node
    if n_ranks & (n_ranks - 1):
        raise InputError(
            f"[cluster] has {n_ranks} ranks (n_replicas x n_stages x n_shards), but the grid "
            "consists of powers of two; change one of them, or use dynapipe-hpc tune"
        )
    return [
        [
            Variant(method.method, planner, cluster)
            for planner in _settings(method.planner, config.data.max_tokens)
        ]
        for method in methods_of(config)
        for cluster in divisions(method.cluster)
        if cluster.n_shards <= most_shards
    ]


def _settings(planner: PlannerConfig, longest: int) -> Iterator[PlannerConfig]:
    batch, cost = planner.batch, planner.cost
    tuned = [key for key in (ROWS_KEY, TOKENS_KEY) if getattr(batch, key, None) == "tuned"]
    if not tuned:
        yield planner
        return
    settings = ROWS if tuned == [ROWS_KEY] else [int(longest * share) for share in TOKENS]
    for mode, setting in product(cost.recompute_modes, settings):
        tables = {
            "batch": batch.model_copy(update={tuned[0]: setting}),
            "cost": cost.model_copy(update={"recompute": (mode.text,)}),
        }
        yield planner.model_copy(update=tables)
