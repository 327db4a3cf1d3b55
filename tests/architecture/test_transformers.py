"""Shapes of decoders of `transformers`, which need no torch, against their modules."""

import json
import math
from pathlib import Path

import pytest
from tests.examples.any_decoders import DECODERS, origin_of, saved_decoder
from torch import nn

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.part import EMBEDDING, HEAD, LAYER
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.transformers.stage import TransformersStage

every_decoder = pytest.mark.parametrize("name", DECODERS)
SHAPE = TransformersShape(
    n_layers=2,
    hidden_size=4,
    n_heads=2,
    ffn_size=8,
    vocab_size=6,
    max_tokens=16,
    model_type="mixtral",
    settings='{"model_type":"mixtral"}',
    tensors={
        "model.embed_tokens.weight": (6, 4),
        "model.layers.*.self_attn.q_proj.weight": (8, 4),
        "model.layers.*.self_attn.q_norm.weight": (2, 4),
        "model.layers.*.mlp.gate.weight": (3, 4),
        "model.layers.*.mlp.experts.down_proj": (3, 4, 8),
        "model.layers.*.norm.weight": (4,),
        "model.norm.weight": (4,),
        "lm_head.weight": (6, 4),
    },
)


def numbers_of(module: nn.Module) -> tuple[int, int]:
    """Numbers of weights, and of those that are frozen."""
    weights = list(module.parameters())
    return sum(w.numel() for w in weights), sum(w.numel() for w in weights if not w.requires_grad)


@every_decoder
@pytest.mark.parametrize("lora", [None, Lora(rank=3), Lora(rank=2, targets=("o_proj",))])
def test_weights_are_those_of_the_modules(name: str, lora: Lora | None, tmp_path: Path) -> None:
    saved_decoder(name, tmp_path)
    shape = origin_of(tmp_path)[1]
    if lora and lora.targets and name == "mixtral":
        assert {n for (n,) in shape.linear_layers.values()} == {f"{each}_proj" for each in "qkvo"}
    shape = shape.model_copy(update={"lora": lora})
    for kind, layers, first, last in (
        (LAYER, range(1, 2), False, False),
        (EMBEDDING, range(0), True, False),
        (HEAD, range(0), False, True),
    ):
        stage = TransformersStage(shape, layers, first=first, last=last)
        n_numbers, n_frozen, n_first = shape.weights()[kind]
        assert numbers_of(stage) == (n_numbers, n_frozen)
        assert n_first == (n_numbers if kind == EMBEDDING else 0)


def test_weights_are_counted_by_hand() -> None:
    layer = 8 * 4 + 2 * 4 + 3 * 4 + 3 * 4 * 8 + 4
    assert SHAPE.weights() == {LAYER: (layer, 0, 0), EMBEDDING: (24, 0, 24), HEAD: (28, 0, 0)}
    assert SHAPE.tied == {}
    assert SHAPE.linear_layers == {"self_attn.q_proj": ("q_proj",)}
    adapted = SHAPE.model_copy(update={"lora": Lora(rank=2)})
    assert adapted.weights()[LAYER] == (layer + 2 * 12, layer, 0)


def test_gradients_of_linear_maps_or_their_adapters_may_wait() -> None:
    assert SHAPE.n_deferrable == 8 * 4  # neither norms of heads nor routers nor experts
    assert SHAPE.model_copy(update={"lora": Lora(rank=2)}).n_deferrable == 2 * 12
    assert SHAPE.deferring_kinds(Recompute.NONE) == {LAYER}
    assert not SHAPE.deferring_kinds(Recompute.FULL)
    names = ("relu", "relu2", "gelu")
    shapes = [SHAPE.model_copy(update={"settings": f'{{"hidden_act":"{n}"}}'}) for n in names]
    assert [shape.has_relu for shape in shapes] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "width", "reason"),
    [
        *((name, 16, "") for name in ("llama", "phi3", "smollm3", "mixtral", "starcoder2")),
        *((name, 24, "") for name in ("qwen3_moe", "gemma3")),
        ("gemma2", 0, "soft cap (attn_logit_softcapping is 2.0)"),
        ("falcon", 0, "with unknown names"),
    ],
)
def test_keys_and_values_are_as_wide_as_their_heads(
    name: str, width: int, reason: str, tmp_path: Path
) -> None:
    saved_decoder(name, tmp_path)
    shape = origin_of(tmp_path)[1]
    assert shape.cache_width == shape.spared_width == width
    assert reason in shape.slices_obstacle
    assert bool(reason) == bool(shape.slices_obstacle)


def test_layers_that_call_attention_twice_keep_no_keys_and_values() -> None:
    shape = SHAPE.model_copy(update={"model_type": "diffllama"})
    assert "twice" in shape.slices_obstacle
    assert not shape.cache_width
    assert not shape.pairs_obstacle


QWEN = {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({**QWEN, "max_window_layers": SHAPE.n_layers - 1}, 8),
        (QWEN, math.inf),  # the first 28 layers have none
        ({"model_type": "gemma3_text", "sliding_window": 8}, 8),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"] * 2}, math.inf),
        ({"model_type": "starcoder2", "sliding_window": SHAPE.max_tokens - 1}, 15),
        ({"model_type": "starcoder2", "sliding_window": SHAPE.max_tokens}, math.inf),
    ],
)
def test_windows_are_those_of_some_layers(settings: dict[str, object], window: float) -> None:
    text = json.dumps({**settings, "num_hidden_layers": SHAPE.n_layers})
    assert SHAPE.model_copy(update={"settings": text}).window == window


def test_costs_depend_on_settings() -> None:
    other = SHAPE.model_copy(update={"settings": '{"model_type":"mixtral","x":1}'})
    assert other.fingerprint != SHAPE.fingerprint
    assert SHAPE.with_layers(4).fingerprint == SHAPE.fingerprint
