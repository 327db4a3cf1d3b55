"""T5s of every kind give the logits, losses and gradients of `transformers`, where installed."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import RandomTokens, packed_pairs
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models import head
from dynapipe_hpc.models.collate import IterationTokens
from dynapipe_hpc.models.t5 import T5Stage, buckets

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install '.[reference]'"
)
from transformers.models.t5 import modeling_t5 as theirs  # noqa: E402 - it may be missing

PAD, END = 0, 1
SAMPLES = [Sample(1, 9, 4), Sample(2, 3, 7), Sample(3, 150, 20)]
BY_ID = {sample.sample_id: sample for sample in SAMPLES}
N_TARGETS = sum(sample.target_tokens for sample in SAMPLES)
LAYOUTS: dict[str, MicroBatch] = {
    "padded": PaddedRows(tuple(BY_ID), 152, target_tokens=24),
    "packed": packed_pairs(SAMPLES, fill=6, target_fill=1),
}
BASE = T5Shape(
    n_layers=2,
    hidden_size=12,
    n_heads=2,
    head_size=5,
    ffn_size=20,
    vocab_size=31,
    max_tokens=200,
)


class Kind(NamedTuple):
    """A kind of T5, in our words and in theirs."""

    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]


KINDS = {
    "1.0": Kind({}, {"feed_forward_proj": "relu"}),
    "1.1": Kind(
        {"gated": True, "tied_head": False},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "unequal sides": Kind(
        {"n_layers": 4, "n_decoder_layers": 2, "gated": True, "tied_head": False},
        {
            "num_layers": 4,
            "num_decoder_layers": 2,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
    "more in the decoder": Kind({"n_decoder_layers": 3}, {"num_decoder_layers": 3}),
    "other numbers": Kind(
        {"n_buckets": 10, "max_distance": 40, "norm_epsilon": 1e-2, "gated": True},
        {
            "relative_attention_num_buckets": 10,
            "relative_attention_max_distance": 40,
            "layer_norm_epsilon": 1e-2,
            "feed_forward_proj": "gated-gelu",
        },
    ),
}
NAMES = (
    (r"^embedding\.", "shared."),
    (r"^head\.logits", "lm_head"),
    (r"^(en|de)coder_norm", r"\1coder.final_layer_norm"),
    (r"^(en|de)coder_bias", r"\1coder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    (r"^(en|de)coder\.(\d)", r"\1coder.block.\2.layer"),
    (r"\.attention_norm", ".0.layer_norm"),
    (r"\.cross_attention_norm", ".1.layer_norm"),
    (r"(encoder.*)\.feed_forward_norm", r"\1.1.layer_norm"),
    (r"(decoder.*)\.feed_forward_norm", r"\1.2.layer_norm"),
    (r"\.attention\.", ".0.SelfAttention."),
    (r"\.cross_attention\.", ".1.EncDecAttention."),
    (r"(encoder.*)\.feed_forward\.", r"\1.1.DenseReluDense."),
    (r"(decoder.*)\.feed_forward\.", r"\1.2.DenseReluDense."),
    (r"Attention\.query", "Attention.q"),
    (r"Attention\.output", "Attention.o"),
    (r"Dense\.output", "Dense.wo"),
)
JOINED = {"key_value": ("k", "v"), "inner": ("wi_0", "wi_1")}


def renamed(tensors: Mapping[str, Tensor], *, is_gated: bool) -> dict[str, Tensor]:
    """Tensors by their names in `transformers`, which has a tensor for each map."""
    found = {}
    for name, tensor in tensors.items():
        other = name
        for pattern, replacement in NAMES:
            other = re.sub(pattern, replacement, other)
        *_, last = name.removesuffix(".weight").split(".")
        if last == "inner" and not is_gated:
            found[other.replace("inner", "wi")] = tensor
        elif last in JOINED:
            for part, half in zip(JOINED[last], tensor.chunk(2), strict=True):
                found[other.replace(last, part)] = half
        else:
            found[other] = tensor
    return found


def exact_norm(self: Any, hidden: Tensor) -> Tensor:
    """Theirs takes mean squares in float32, whatever the type of its weights."""
    mean = hidden.square().mean(-1, keepdim=True)
    normed: Tensor = self.weight * hidden * torch.rsqrt(mean + self.variance_epsilon)
    return normed


def whole(shape: ModelShape, dtype: torch.dtype) -> T5Stage:
    layers = range(shape.n_all_layers)
    made = T5Stage(shape, layers, first=True, last=True, dtype=dtype)
    for seed, weight in enumerate(made.parameters()):
        nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    return made


def reference(kind: Kind, made: T5Stage, dtype: torch.dtype) -> Any:
    """The model of `transformers`, with the weights of ours."""
    config = transformers.T5Config(
        **{
            "vocab_size": 31,
            "d_model": 12,
            "d_kv": 5,
            "d_ff": 20,
            "num_layers": 2,
            "num_heads": 2,
            "dropout_rate": 0.0,
            "decoder_start_token_id": PAD,
            **kind.theirs,
        }
    )
    model = transformers.T5ForConditionalGeneration(config).to(dtype).eval()
    own = {name: p.detach().clone() for name, p in made.named_parameters()}
    weights = renamed(own, is_gated="gated" in kind.ours)
    vectors = own["embedding.weight"]
    if "lm_head.weight" in weights:
        model.lm_head.weight = nn.Parameter(torch.empty_like(vectors))
    shared = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    model.load_state_dict({"lm_head.weight": vectors, **dict.fromkeys(shared, vectors), **weights})
    return model


def their_batch() -> dict[str, Tensor]:
    """Inputs and labels filled up, with a mask; their model itself shifts labels to the right."""
    shape, target_shape = (len(SAMPLES), 152), (len(SAMPLES), 24)
    ids, mask = np.full(shape, PAD), np.zeros(shape, dtype=np.int64)
    labels = np.full(target_shape, -100)
    for row, sample in enumerate(SAMPLES):
        sides = (sample.input_tokens, sample.target_tokens)
        inputs, targets = RandomTokens().read(sample.sample_id, *sides)
        ids[row, : len(inputs)], mask[row, : len(inputs)] = inputs, 1
        labels[row, : len(targets)] = targets
    return {
        name: torch.from_numpy(array)
        for name, array in {"input_ids": ids, "attention_mask": mask, "labels": labels}.items()
    }


class Found(NamedTuple):
    """Loss, logits of every target token of each sample, and gradients by their names."""

    loss: Tensor
    logits: Tensor
    gradients: Mapping[str, Tensor]


def of_reference(model: Any) -> Found:
    batch = their_batch()
    outcome = model(**batch)
    outcome.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return Found(outcome.loss.detach(), outcome.logits[batch["labels"] >= 0].detach(), gradients)


def of_ours(
    made: T5Stage, microbatch: MicroBatch, mode: Recompute, monkeypatch: pytest.MonkeyPatch
) -> Found:
    seen, compute = [], head.linear_cross_entropy

    def noting(hidden: Tensor, vectors: Tensor, *others: Any) -> Tensor:
        seen.append((hidden @ vectors.t()).detach())
        return compute(hidden, vectors, *others)

    monkeypatch.setattr(head, "linear_cross_entropy", noting)
    tokens = IterationTokens(BY_ID, dict.fromkeys(BY_ID, 1 / N_TARGETS), RandomTokens(), PAD)
    batch = made.collate(microbatch, tokens)
    loss = run_stage(made, None, batch, mode)
    torch.autograd.backward(loss)
    gradients = {n: p.grad for n, p in made.named_parameters() if p.grad is not None}
    return Found(loss.detach(), seen[0][batch.tokens.weights > 0], gradients)


def assert_close(found: Tensor, expected: Tensor, error: float, name: str) -> None:
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=error, atol=error * scale, msg=name)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["float64", "float32"]
)
def test_logits_loss_and_gradients_are_those_of_transformers(
    kind: Kind, layout: str, dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype is torch.float64:
        monkeypatch.setattr(theirs.T5LayerNorm, "forward", exact_norm)
    made = whole(BASE.model_copy(update=kind.ours), dtype)
    expected = of_reference(reference(kind, made, dtype))
    mode = Recompute.FULL if layout == "packed" else Recompute.NONE
    found = of_ours(made, LAYOUTS[layout], mode, monkeypatch)
    assert_close(found.loss, expected.loss, error, "loss")
    assert_close(found.logits, expected.logits, error, "logits")
    gradients = renamed(found.gradients, is_gated="gated" in kind.ours)
    assert gradients.keys() == expected.gradients.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, expected.gradients[name], error, name)


LEFT_OUT = [
    ("1.1", "gated"),
    ("1.1", "tied_head"),
    ("unequal sides", "n_decoder_layers"),
    ("other numbers", "n_buckets"),
    ("other numbers", "max_distance"),
    ("other numbers", "norm_epsilon"),
]


@pytest.mark.parametrize(("kind", "setting"), LEFT_OUT)
def test_logits_tell_when_a_setting_is_left_out(
    kind: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = BASE.model_copy(update=KINDS[kind].ours)
    made = whole(shape, torch.float64)
    left_out = {setting: T5Shape.model_fields[setting].default}
    without = whole(shape.model_copy(update=left_out), torch.float64)
    weights = dict(made.named_parameters())
    with torch.no_grad():
        for name, weight in without.named_parameters():
            if name in weights:
                n = min(len(weight), len(weights[name]))
                weight[:n] = weights[name][:n]
        if setting == "tied_head":  # only the division is left
            weights["head.logits.weight"].copy_(weights["embedding.weight"])
    expected, found = (
        of_ours(each, LAYOUTS["padded"], Recompute.NONE, monkeypatch).logits
        for each in (made, without)
    )
    assert (found - expected).abs().max() > 1e-3 * expected.abs().max()


@pytest.mark.parametrize("causal", [True, False])
def test_buckets_are_theirs_for_any_sizes(*, causal: bool) -> None:
    distances = torch.arange(-1100, 1101)
    bucket: Any = theirs.T5Attention._relative_position_bucket
    for n, farthest in ((32, 128), (4, 3), (7, 20), (9, 128), (54, 64), (72, 100), (128, 1000)):
        expected = bucket(distances, bidirectional=not causal, num_buckets=n, max_distance=farthest)
        assert torch.equal(buckets(distances, n, farthest, causal=causal), expected)
