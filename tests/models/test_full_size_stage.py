"""Stages of full size on torch's meta device: shapes and memory without numbers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.examples.training_case import name_of, run_stage
from tests.jobs.local_shards import OneOf
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from dynapipe_hpc.architecture.decoder import LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.models import attention, family, t5
from dynapipe_hpc.models.batch import Batch, Labels
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes, forward_costs
from dynapipe_hpc.training.flat_parameters import FlatParameters

META, ELEMENT_BYTES = torch.device("meta"), 2


def full_size(name: str, **changes: Any) -> ModelShape:
    """One layer, or a few, of a model in configs/models."""
    path = Path(__file__).parents[2] / "configs" / "models" / f"{name}.toml"
    return load_config(path).model.model_copy(update={"max_tokens": 2048, **changes})


GPT_6B7 = full_size("gpt_6.7b", n_layers=1, dropout=0.1)
QWEN3_8B = full_size("qwen3_8b", n_layers=1)
T5_11B = full_size("t5_11b", n_layers=3, vocab_size=50_304)
FLAN_XXL = full_size("flan_t5_xxl", n_layers=3, n_decoder_layers=2, dropout=0.1)
SHAPES = (GPT_6B7, QWEN3_8B, T5_11B, FLAN_XXL)


class Sizes(NamedTuple):
    """A micro-batch of 8,192 tokens, on each side."""

    rows: int
    tokens: int
    targets: int = 0


SIZES = {"gpt": Sizes(4, 2048), "llama": Sizes(4, 2048), "t5": Sizes(16, 512, 512)}
LONG_INPUTS, LONG_TARGETS = Sizes(4, 2048, 256), Sizes(2, 512, 2048)


class Memory(NamedTuple):
    """Bytes of a micro-batch: kept between its passes, and at most."""

    kept: float
    peak: float


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention by a GPU's kernels; torch would choose none of them on this device."""
    aten, inputs = torch.ops.aten, (query, key, value)
    if bias is None:
        attended: Tensor = aten._scaled_dot_product_flash_attention(
            *inputs, 0.0, is_causal, scale=scale
        )[0]
    else:
        bias = bias.expand(*query.shape[:3], key.shape[2])
        attended = aten._scaled_dot_product_efficient_attention(
            *inputs, bias, True, 0.0, is_causal, scale=scale
        )[0]
    return attended


class FusedNorm(Function):
    """Root-mean-square norm as on a GPU, which keeps its input and a number per token."""

    @staticmethod
    def forward(context: Any, values: Tensor, weight: Tensor) -> Tensor:
        per_token = values.new_empty(values.shape[:-1], dtype=torch.float32)
        context.save_for_backward(values, weight, per_token)
        return torch.empty_like(values)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(gradients[0]), torch.empty_like(context.saved_tensors[1])


def fused_norm(values: Tensor, _: Sequence[int], weight: Tensor, __: float) -> Tensor:
    normed: Tensor = FusedNorm.apply(values, weight)  # type: ignore[no-untyped-call]
    return normed


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the kernels of a GPU, and draws no weights, as there is nowhere to put them."""
    monkeypatch.setattr(family, "initialize", lambda *_: None)
    monkeypatch.setattr(functional, "rms_norm", fused_norm)
    for module in (attention, t5):
        monkeypatch.setattr(module, "attention", fused)


def batch_of(sizes: Sizes) -> Batch:
    """With keys, by which only models with dropout drop."""

    def ids(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=META)

    def rows_of(n_tokens: int) -> Batch:
        rows = sizes.rows, n_tokens
        labels = Labels(ids(*rows), ids(*rows).double(), ids(*rows))
        return Batch(rows, None, ids(*rows), labels, keys=ids(*rows))

    inputs = rows_of(sizes.tokens)
    if not sizes.targets:
        return inputs
    return replace(rows_of(sizes.targets), source=replace(inputs, lengths=ids(sizes.rows)))


ALONE = Cluster(device_memory_bytes=1)


def stage_of(shape: ModelShape, cluster: Cluster = ALONE) -> StageOfFamily:
    layers = range(shape.n_all_layers)
    shards = OneOf(cluster.n_shards, sequence_parallel=cluster.sequence_parallel)
    return family_of(shape)(
        shape, layers, first=True, last=True, shards=shards, dtype=torch.bfloat16, device=META
    )


def measured(
    shape: ModelShape, mode: Recompute, cluster: Cluster = ALONE, sizes: Sizes | None = None
) -> Memory:
    """Memory of a forward and a backward pass of a stage that holds the model."""
    stage = stage_of(shape, cluster)
    if isinstance(shape, LlamaShape):  # whose speeds of turning stay
        Angles.from_positions(shape, torch.arange(1, device=META), torch.bfloat16)
    FlatParameters(stage)
    batch = batch_of(sizes or SIZES[shape.family])
    with LiveMemory() as live:
        loss = run_stage(stage, None, batch, mode)
        kept = live.live_bytes
        torch.autograd.backward(loss)
        assert live.live_bytes <= loss.nbytes
    return Memory(kept, live.peak_bytes)


def estimated(shape: ModelShape, mode: Recompute, cluster: Cluster = ALONE) -> CostModel:
    config = AnalyticConfig(element_bytes=ELEMENT_BYTES, recompute=(mode.text,))
    placement = Placement.equal_shares(shape.n_all_layers, n_stages=1)
    return analytic_cost(shape, placement, cluster, config)


def shapes_of(sizes: Sizes) -> Shapes:
    return Shapes.padded(*np.array(sizes)[:, np.newaxis])


def planned(
    shape: ModelShape, mode: Recompute, cluster: Cluster = ALONE, sizes: Sizes | None = None
) -> Memory:
    costs = estimated(shape, mode, cluster).stage_costs(
        shapes_of(sizes or SIZES[shape.family]), mode
    )
    stored = costs.stored_bytes.item()
    transient = (costs.forward_transient_bytes, costs.backward_transient_bytes)
    return Memory(stored, stored + max(each.item() for each in transient))


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_a_full_size_stage_needs_the_memory_that_plans_count_on(
    shape: ModelShape, mode: Recompute
) -> None:
    found, plan = measured(shape, mode), planned(shape, mode)
    a_side = 8192 * shape.hidden_size * ELEMENT_BYTES
    assert found.kept == pytest.approx(plan.kept, rel=0.02, abs=2.3 * a_side)
    # Where less is kept, estimates assume that recomputation and the largest part coincide.
    most = 1.1 if mode is Recompute.NONE else 1.6
    assert found.peak / 1.1 <= plan.peak <= most * found.peak


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_an_evaluation_needs_no_more_memory_than_its_plans_count_on(shape: ModelShape) -> None:
    stage, sizes = stage_of(shape), SIZES[shape.family]
    with torch.no_grad(), LiveMemory() as live:
        run_stage(stage, None, batch_of(sizes))
    for mode in Recompute:
        costs = forward_costs(estimated(shape, mode)).stage_costs(shapes_of(sizes))
        plan = costs.forward_transient_bytes.item()
        assert live.peak_bytes <= plan, mode
    assert plan <= 1.6 * live.peak_bytes


NARROW = {"hidden_size": 256, "n_heads": 4, "head_size": 64, "ffn_size": 512, "vocab_size": 512}


@pytest.mark.parametrize(
    ("shape", "sizes", "n_bytes"),
    [(GPT_6B7, Sizes(256, 512), 8 * 2**23), (T5_11B, Sizes(8, 128, 128), 8 * 8 * 128 * 512)],
    ids=["many", "few"],
)
def test_masks_of_dropout_are_planned_while_they_are_made_and_kept_nowhere(
    shape: ModelShape, sizes: Sizes, n_bytes: int
) -> None:
    # Eight bytes for each number that is dropped or not, of up to 2^23 at a time. Without them
    # the peak may be elsewhere.
    none, some = (shape.model_copy(update=NARROW | {"dropout": rate}) for rate in (0.0, 0.1))
    for memory in (measured, planned):
        without, with_masks = (memory(each, Recompute.FULL, sizes=sizes) for each in (none, some))
        assert with_masks.kept == without.kept
        assert with_masks.peak - without.peak == pytest.approx(n_bytes, rel=0.13)


@pytest.mark.parametrize(
    ("sizes", "n_added"), [(LONG_INPUTS, 4 * 2048**2), (LONG_TARGETS, 2048**2)]
)
def test_what_long_rows_add_to_scores_is_planned_with_its_gradients(
    sizes: Sizes, n_added: int
) -> None:
    # To stop autograd from adding up in place, as the account does, takes one more of its size.
    shape = T5_11B.model_copy(update={"ffn_size": 4096})  # so that attention needs the most
    found = measured(shape, Recompute.FULL, sizes=sizes)
    plan = planned(shape, Recompute.FULL, sizes=sizes)
    added_bytes = ELEMENT_BYTES * shape.n_heads * n_added
    assert added_bytes < found.kept == pytest.approx(plan.kept, rel=0.02)
    assert plan.peak == pytest.approx(found.peak - added_bytes, rel=0.08)


@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_a_shard_keeps_what_plans_count_on(mode: Recompute) -> None:
    kept, shape = {}, GPT_6B7.model_copy(update={"dropout": 0.0})
    for spread in (False, True):
        cluster = Cluster(n_shards=8, sequence_parallel=spread, device_memory_bytes=1)
        found, plan = measured(shape, mode, cluster), planned(shape, mode, cluster)
        assert found.kept == pytest.approx(plan.kept, rel=0.02)
        assert found.peak <= plan.peak <= 1.5 * found.peak
        kept[spread] = found.kept
    width_bytes = 8192 * 4096 * ELEMENT_BYTES
    # With the head, which keeps its input and, gathered, what its norm makes of it.
    widths = {"none": (4 + 12 / 8 + 2), "selective": (3 + 8 / 8 + 2), "full": (1 + 2)}[mode.text]
    saved = {"none": 5 * 7 / 8, "selective": 4 * 7 / 8, "full": 2 * 7 / 8}[mode.text]
    assert kept[False] == pytest.approx(widths * width_bytes, rel=0.01)
    assert kept[False] - kept[True] == pytest.approx(saved * width_bytes, rel=0.01)
