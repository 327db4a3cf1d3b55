"""The grid of the paper: methods, divisions in powers of two, settings of baselines."""

from collections.abc import Iterator
from itertools import product

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.study.methods import methods_of
from dynapipe_hpc.experiment.study.variants import Variant, divisions
from dynapipe_hpc.planner.config import PlannerConfig

ROWS_KEY, TOKENS_KEY = "rows_per_microbatch", "tokens_per_microbatch"

ROWS = tuple(2**k for k in range(7))
"""Rows of a micro-batch that are tried."""

TOKENS = tuple(2.0**k for k in range(-2, 4))
"""Tokens of a micro-batch that are tried, in units of data.max_tokens."""


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
        [Variant(method.name, planner, cluster) for planner in _settings(method.config)]
        for method in methods_of(config)
        for cluster in divisions(method.config.cluster)
        if cluster.n_shards <= most_shards
    ]


def _settings(config: ExperimentConfig) -> Iterator[PlannerConfig]:
    batch, cost = config.planner.batch, config.planner.cost
    tuned = [key for key in (ROWS_KEY, TOKENS_KEY) if getattr(batch, key, None) == "tuned"]
    if not tuned:
        yield config.planner
        return
    longest = config.data.max_tokens
    settings = ROWS if tuned == [ROWS_KEY] else [int(longest * share) for share in TOKENS]
    for mode, setting in product(cost.recompute_modes, settings):
        tables = {
            "batch": batch.model_copy(update={tuned[0]: setting}),
            "cost": cost.model_copy(update={"recompute": (mode.text,)}),
        }
        yield config.planner.model_copy(update=tables)
