"""Models of `transformers` that cannot be cut into stages, or whose attention is another."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.transformers.attention import Scores
from dynapipe_hpc.models.transformers.model import BuiltModel, check_attention, unknown_kinds

SLIDING = ["sliding_attention", "full_attention"]


def model_of(**settings: Any) -> BuiltModel:
    """A model of two layers, of which only the settings are read."""
    whole = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=2, **settings))
    layers: list[nn.Module] = [nn.Identity(), nn.Identity()]
    return BuiltModel(whole, None, "layers", layers, calls_sdpa=False, last_modules=[])


def shape_of(*, can_cut: bool = True) -> TransformersShape:
    """The same model as plans know it."""
    maps = "k_proj" if can_cut else "other"
    return TransformersShape(
        n_layers=2,
        hidden_size=4,
        n_heads=2,
        ffn_size=8,
        vocab_size=6,
        max_tokens=9,
        model_type="llama",
        settings='{"model_type":"llama"}',
        tensors={
            "model.embed_tokens.weight": (6, 4),
            f"model.layers.*.self_attn.{maps}.weight": (4, 4),
            "lm_head.weight": (6, 4),
        },
    )


@pytest.mark.parametrize(
    ("settings", "windows"),
    [
        ({}, (None, None)),
        ({"sliding_window": None}, (None, None)),
        ({"sliding_window": 4}, (4, 4)),
        ({"sliding_window": 4, "layer_types": SLIDING}, (4, None)),
    ],
)
def test_attention_is_told_of_the_window_of_its_layer(
    settings: dict[str, Any], windows: tuple[int | None, int | None]
) -> None:
    model, shape = model_of(**settings), shape_of()
    for index, window in enumerate(windows):
        check_attention(model, index, Scores(window=window), shape)
        other = 4 if window is None else None
        with pytest.raises(InputError, match=f"a window of {window} tokens .* with one of {other}"):
            check_attention(model, index, Scores(window=other), shape)


@pytest.mark.parametrize(
    ("cap", "can_cut", "is_refused"), [(None, True, False), (2.0, True, True), (2.0, False, False)]
)
def test_caps_of_which_settings_do_not_tell_are_refused_where_samples_may_be_cut(
    cap: float | None, can_cut: bool, is_refused: bool
) -> None:
    message = r"a soft cap of 2.0, which its settings do not name"
    refusal = pytest.raises(InputError, match=message)
    with refusal if is_refused else nullcontext():
        check_attention(model_of(), 0, Scores(cap=cap), shape_of(can_cut=can_cut))


def test_kinds_of_attention_that_are_neither_full_nor_have_a_window_are_unknown() -> None:
    assert unknown_kinds(SimpleNamespace(layer_types=SLIDING)) == set()
    assert unknown_kinds(SimpleNamespace(layer_types=None)) == set()
    kinds = SimpleNamespace(layer_types=[*SLIDING, "linear_attention"], attention_chunk_size=8)
    assert unknown_kinds(kinds) == {"linear_attention", "chunked_attention"}


def test_a_layer_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match="Identity of transformers calls no attention"):
        check_attention(model_of(), 0, None, shape_of())
