"""The memory that plans set aside for a model is what the optimizers of a run keep."""

from typing import Any

import pytest
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import build_module, dtype_of
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.training.flat_parameters import ALIGNMENT
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.tied_copies import tied_weights

OPTIONS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "tied gpt": {"tied_head": True},
    "gpt with adapters": {"tied_head": True, "lora": {"rank": 4}},
    "t5": {},
    "t5 with adapters": {"lora": {"rank": 4, "targets": ("query", "down")}},
    "gated t5": {"gated": True, "tied_head": False, "n_decoder_layers": 3, "n_buckets": 12},
}


def experiment(family: str, dtype: str, **cluster: int) -> ExperimentConfig:
    make = tiny_t5_experiment if "t5" in family else tiny_experiment
    tables = make().model_dump()
    tables["model"] |= OPTIONS[family]
    tables["model"] |= {"hidden_size": 64, "ffn_size": 256, "vocab_size": 400}
    tables["cluster"] |= cluster
    tables["training"] |= {"dtype": dtype}
    return ExperimentConfig.model_validate(tables)


def kept_bytes(config: ExperimentConfig) -> list[int]:
    """By rank, after a step."""
    world = LocalWorld(config.cluster.n_ranks)
    sums = LocalSums(world, config.cluster)
    placement = any_placement(config)
    tied = tied_weights(config.model, placement, config.cluster.n_shards)

    def kept_on(rank: int) -> int:
        collectives = LocalCollectives(sums, rank)
        module = build_module(config, placement, config.cluster.stage_of(rank), collectives)
        optimizer = Optimizer(
            module,
            config.training,
            collectives,
            shares_state=config.cluster.zero_stage == 1,
            tied=tied,
        )
        optimizer.step()
        return optimizer.kept_bytes

    return world.run(kept_on)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize("n_shards", [1, 2])
@pytest.mark.parametrize("n_stages", [1, 2, 4])
@pytest.mark.parametrize("family", OPTIONS)
def test_static_memory_is_what_a_rank_keeps(
    family: str, n_stages: int, n_shards: int, zero_stage: int, dtype: str
) -> None:
    sizes = {"n_stages": n_stages, "n_shards": n_shards, "n_replicas": 2}
    config = experiment(family, dtype, zero_stage=zero_stage, **sizes)
    rates = AnalyticConfig(element_bytes=dtype_of(config).itemsize)
    predicted = analytic_cost(
        config.model, any_placement(config), config.cluster, rates
    ).static_bytes
    for rank, kept in enumerate(kept_bytes(config)):
        assert abs(kept - predicted[config.cluster.stage_of(rank)]) <= _rounding_bytes(config)


def _rounding_bytes(config: ExperimentConfig) -> float:
    """Of alignment, twice in weights and once in copies, and of the encoder's norm."""
    n_numbers = ALIGNMENT * (2 + config.cluster.n_replicas) + config.model.hidden_size
    dtype = dtype_of(config)
    return n_numbers * dtype.itemsize * state_factor(dtype.itemsize)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_estimates_are_of_numbers_of_the_type_that_trains(dtype: str) -> None:
    tables = tiny_experiment(n_stages=1).model_dump()
    tables["training"]["dtype"] = dtype
    config = ExperimentConfig.model_validate(tables)
    costs = Experiment(config).costs
    assert isinstance(costs, AnalyticConfig)
    assert costs.element_bytes == dtype_of(config).itemsize
    assert costs.state_factor == state_factor(costs.element_bytes)
