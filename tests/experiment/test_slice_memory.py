"""Memory of a stage that holds slices of a sample, against its prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.examples.any_decoders import wide_decoder
from tests.examples.equal_shares import equal_shares
from tests.examples.sliced_case import sliced_row, slices_of
from tests.examples.training_case import PLAIN_LLAMA_SHAPE, SHAPE, make_rank, packed

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Part
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.transformers.parts import decoder_parts
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.training.collectives import SingleRankCollectives

LONG = Sample(0, 160, 160, task_id=0)
CLUSTER = Cluster(n_stages=2, device_memory_bytes=1)
SIZES = {"hidden_size": 96, "n_heads": 4, "ffn_size": 256, "vocab_size": 200, "max_tokens": 320}
SHAPES = [
    SHAPE.model_copy(update=SIZES),
    PLAIN_LLAMA_SHAPE.model_copy(update={**SIZES, "head_size": 24, "n_kv_heads": 4}),
    PLAIN_LLAMA_SHAPE.model_copy(update={**SIZES, "head_size": 24, "n_kv_heads": 2}),
]
COSTS = AnalyticConfig(element_bytes=4, recompute=("none", "selective", "full"))
STAGE = 1


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.SELECTIVE], ids=lambda m: m.text)
@pytest.mark.parametrize("shape", SHAPES, ids=["gpt", "llama", "llama-grouped"])
def test_slices_need_as_much_more_than_a_row_as_predicted(
    shape: ModelShape, recompute: Recompute
) -> None:
    found, predicted = shares_of_a_row(shape, recompute, {})
    assert found == pytest.approx(predicted, rel=0.08)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL], ids=lambda m: m.text)
@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3_moe"])
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
    cost = analytic_cost(shape, equal_shares(shape, CLUSTER), CLUSTER, COSTS, parts=parts)
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
