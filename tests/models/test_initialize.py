"""Initial weights and adapters: every rank draws what it holds, and nothing else."""

import hashlib
import math
from typing import Any

import pytest
import torch
from tests.examples.training_case import SHAPE, T5_SHAPE, UNEVEN_SHAPE, UNEVEN_T5_SHAPE
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models import initialize
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import WHOLE, OneShard, splits_of

SHAPES = pytest.mark.parametrize(
    "shape",
    [SHAPE, UNEVEN_SHAPE, T5_SHAPE, UNEVEN_T5_SHAPE],
    ids=lambda s: f"{s.family}-{s.n_heads}",
)


class ShardOf(OneShard):
    """One of a number of shards, none of which waits for another."""

    def __init__(self, shard: int, n_shards: int) -> None:
        self.shard, self.n_shards = shard, n_shards


def made(shape: ModelShape, shard: int = 0, n_shards: int = 1) -> StageOfFamily:
    return family_of(shape)(
        shape,
        range(shape.n_all_layers),
        first=True,
        last=True,
        shards=ShardOf(shard, n_shards),
        seed=11,
    )


def stream_of(name: str, seed: int = 11) -> torch.Generator:
    """Random stream of a weight, by the documents."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


def drawn(weight: Tensor, name: str) -> Tensor:
    """Initial weight, but for its scale."""
    return torch.randn(weight.shape, generator=stream_of(name))


def assert_scaled(weight: Tensor, numbers: Tensor, deviation: float) -> None:
    torch.testing.assert_close(weight.detach(), numbers * deviation, rtol=1e-6, atol=1e-12)


def test_one_shard_draws_what_it_always_did() -> None:
    matrices = {name: p for name, p in made(SHAPE).named_parameters() if p.ndim == 2}
    assert len(matrices) == 3 + 4 * SHAPE.n_layers
    for name, weight in matrices.items():
        smaller = math.sqrt(2 * SHAPE.n_layers) if name.endswith("output.weight") else 1
        assert_scaled(weight, drawn(weight, name), 0.02 / smaller)


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_shard_draws_its_part_from_its_own_stream(shard: int) -> None:
    weights = dict(made(UNEVEN_T5_SHAPE, shard, 3).named_parameters())
    name = "encoder.1.attention.query.weight"
    deviation = 1 / math.sqrt(12 * 5)
    assert_scaled(weights[name], drawn(weights[name], f"{name}/{shard}/3"), deviation)
    name = "decoder.0.feed_forward.output.weight"
    deviation = 1 / math.sqrt(UNEVEN_T5_SHAPE.ffn_size)  # of all shards together
    assert_scaled(weights[name], drawn(weights[name], f"{name}/{shard}/3"), deviation)
    vectors = weights["embedding.weight"]  # 31 ids: the last shard has 9 of 11
    n_real = 9 if shard == 2 else 11
    assert_scaled(vectors[:n_real], drawn(vectors[:n_real], f"embedding.weight/{shard}/3"), 1.0)
    assert not vectors[n_real:].any()


@SHAPES
def test_weights_that_are_drawn_in_blocks_have_the_same_bits(
    shape: ModelShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(shape).state_dict()
    for n_at_once in (1, 300):
        monkeypatch.setattr(initialize, "DRAWN_AT_ONCE", n_at_once)
        for name, weight in made(shape).state_dict().items():
            assert torch.equal(weight, whole[name])


@pytest.mark.parametrize("n_rows", [1, 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("width", [1, 3, 16])
def test_no_block_is_shorter_than_what_torch_draws_in_one_step(
    n_rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialize, "DRAWN_AT_ONCE", 16)
    for name, seed in (("a", 1), ("b", 2)):
        found = nn.Module()
        found.register_parameter(name, nn.Parameter(torch.empty(n_rows, width)))
        initialize.initialize(found, seed, lambda *_: 0.5)
        expected = torch.randn(n_rows, width, generator=stream_of(name, seed)) * 0.5
        assert torch.equal(found.get_parameter(name), expected)


RANK = 3


def adapted(shape: ModelShape, **lora: Any) -> ModelShape:
    return shape.model_validate({**shape.model_dump(), "lora": {"rank": RANK, **lora}})


def trained(module: StageOfFamily) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def test_every_linear_layer_has_an_adapter_and_nothing_else_is_trained() -> None:
    shapes = {name: tuple(p.shape) for name, p in trained(made(adapted(SHAPE))).items()}
    h, f = SHAPE.hidden_size, SHAPE.ffn_size
    sizes = {
        "attention.query_key_value.adapters.query_key_value": (h, 3 * h),
        "attention.output.adapters.attention_output": (h, h),
        "feed_forward.inner.adapters.up": (h, f),
        "feed_forward.output.adapters.down": (f, h),
    }
    expected: dict[str, tuple[int, int]] = {}
    for layer in range(SHAPE.n_layers):
        for name, (inputs, outputs) in sizes.items():
            expected[f"layers.{layer}.{name}.lora_a"] = (RANK, inputs)
            expected[f"layers.{layer}.{name}.lora_b"] = (outputs, RANK)
    assert shapes == expected


@pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE], ids=lambda shape: shape.family)
@pytest.mark.parametrize("n_shards", [1, 2, 4])
def test_adapters_begin_alike_on_any_number_of_shards(shape: ModelShape, n_shards: int) -> None:
    whole = trained(made(adapted(shape)))
    for shard in range(n_shards):
        module = made(adapted(shape), shard, n_shards)
        splits = splits_of(module)
        for name, weight in trained(module).items():
            assert torch.equal(weight, splits.get(name, WHOLE).part_of(whole[name])), name


def test_adapters_begin_as_documented() -> None:
    for name, weight in trained(made(adapted(SHAPE))).items():
        if name.endswith("lora_b"):
            assert not weight.any()
            continue
        drawn = 2 * torch.rand(weight.shape, generator=stream_of(name)) - 1
        expected = drawn / math.sqrt(weight.shape[1])
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-9)
