"""Adapters of a model: which layers have them, how they begin, and that the rest is frozen."""

import hashlib
import math
from typing import Any

import pytest
import torch
from tests.examples.training_case import SHAPE, T5_SHAPE
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import OneShard
from dynapipe_hpc.models.sharding.split import WHOLE, splits_of

RANK = 3


class ShardOf(OneShard):
    """One of a number of shards, none of which waits for another."""

    def __init__(self, shard: int, n_shards: int) -> None:
        self.shard, self.n_shards = shard, n_shards


def adapted(shape: ModelShape, **lora: Any) -> ModelShape:
    return shape.model_validate({**shape.model_dump(), "lora": {"rank": RANK, **lora}})


def made(shape: ModelShape, shard: int = 0, n_shards: int = 1) -> StageOfFamily:
    return family_of(shape)(
        shape,
        range(shape.n_all_layers),
        first=True,
        last=True,
        shards=ShardOf(shard, n_shards),
        seed=11,
        dtype=torch.float64,
    )


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
        digest = hashlib.sha256(f"11/{name}".encode()).digest()
        stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        drawn = 2 * torch.rand(weight.shape, generator=stream) - 1
        expected = drawn.double() / math.sqrt(weight.shape[1])
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            {"targets": ["q_proj"]},
            "names 'q_proj', but the linear layers of this family are query_",
        ),
        ({"targets": ["up", "up"]}, "names a layer twice: up, up"),
        ({"targets": []}, "at least 1"),
        ({"rank": 0}, "greater than or equal to 1"),
        ({"alpha": 0}, "greater than 0"),
    ],
)
def test_adapters_that_cannot_be_are_refused(lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapted(SHAPE, **lora)
