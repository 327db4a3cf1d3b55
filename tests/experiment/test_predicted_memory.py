"""The memory that plans set aside is what ranks keep: of weights, adapters and slices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.any_decoders import wide_decoder
from tests.examples.equal_shares import equal_shares
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.sliced_case import sliced_row, slices_of
from tests.examples.training_case import PLAIN_LLAMA_SHAPE, SHAPE, make_rank, packed, random_samples
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Part
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import build_module, dtype_of
from dynapipe_hpc.models.transformers.parts import decoder_parts
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.training.collectives import SingleRankCollectives
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


SAMPLES = random_samples(3, n=24)
CLUSTER = Cluster(n_stages=2, device_memory_bytes=1)
SIZES = {"hidden_size": 96, "n_heads": 4, "ffn_size": 256, "vocab_size": 200}


LONG = Sample(0, 160, 160, task_id=0)
SLICE_MEMORY_SIZES = {**SIZES, "max_tokens": 320}
SLICE_MEMORY_SHAPES = [
    SHAPE.model_copy(update=SLICE_MEMORY_SIZES),
    PLAIN_LLAMA_SHAPE.model_copy(update={**SLICE_MEMORY_SIZES, "head_size": 24, "n_kv_heads": 4}),
    PLAIN_LLAMA_SHAPE.model_copy(update={**SLICE_MEMORY_SIZES, "head_size": 24, "n_kv_heads": 2}),
]
SLICE_MEMORY_COSTS = AnalyticConfig(element_bytes=4, recompute=("none", "selective", "full"))
STAGE = 1


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.SELECTIVE], ids=lambda m: m.text)
@pytest.mark.parametrize("shape", SLICE_MEMORY_SHAPES, ids=["gpt", "llama", "llama-grouped"])
def test_slices_need_as_much_more_than_a_row_as_predicted(
    shape: ModelShape, recompute: Recompute
) -> None:
    found, predicted = shares_of_a_row(shape, recompute, {})
    assert found == pytest.approx(predicted, rel=0.08)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL], ids=lambda m: m.text)
@pytest.mark.parametrize("name", ["llama", "phi3", "gemma3", "qwen3_moe"])
def test_so_do_slices_in_layers_of_transformers(
    name: str, recompute: Recompute, tmp_path: Path
) -> None:
    shape = wide_decoder(name, tmp_path)
    parts = decoder_parts(shape, "float32", is_packed=True)
    found, predicted = shares_of_a_row(shape, recompute, parts)
    assert found == pytest.approx(predicted, rel=0.08)


def shares_of_a_row(
    shape: ModelShape, recompute: Recompute, parts: Mapping[str, Part]
) -> tuple[float, float]:
    """Memory of the slices of a sample over that of its row: as it is, and as predicted."""
    row = replace(packed([LONG]), recompute=recompute)
    slices = [
        replace(sliced_row(LONG, part), recompute=recompute)
        for part in slices_of(LONG, (0.25, 0.5, 0.75))
    ]
    cost = analytic_cost(
        shape,
        equal_shares(shape, CLUSTER),
        CLUSTER,
        SLICE_MEMORY_COSTS,
        parts=parts,
    )
    sliced, whole = (
        microbatch_costs(each, cost).stored_bytes.sum(axis=0)[STAGE] for each in (slices, [row])
    )
    return peak_bytes(slices, shape) / peak_bytes([row], shape), sliced / whole


def peak_bytes(microbatches: Sequence[MicroBatch], shape: ModelShape) -> int:
    """The most that is kept between the passes of micro-batches, which go back last first."""
    rank = make_rank(CLUSTER, STAGE, SingleRankCollectives(), dtype=torch.float32, shape=shape)
    rank.tokens.start_iteration([LONG])
    for index, each in enumerate(microbatches):
        rank.stage.load(index, each)
        rank.stage.forward(index, torch.randn(1, each.row_tokens, shape.hidden_size))
    for index in reversed(range(len(microbatches))):
        rank.stage.backward(index, None)
    return rank.stage.finish_iteration().peak_bytes
