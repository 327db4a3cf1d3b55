"""Our Llama gives the logits, losses and gradients of those of `transformers`, where installed."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import START_ID, RandomTokens, packed, padded
from torch import Tensor, nn

from dynapipe_hpc.architecture.decoder import LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import IterationTokens
from dynapipe_hpc.models.family import StageOfFamily, family_of

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install '.[reference]'"
)

SAMPLES = [Sample(1, 9, 4), Sample(2, 3, 7), Sample(3, 90, 20), Sample(4, 0, 1)]
TOKENS = IterationTokens(
    {s.sample_id: s for s in SAMPLES},
    {s.sample_id: 1.0 for s in SAMPLES},
    RandomTokens(),
    START_ID,
)
SIZES: dict[str, Any] = {
    "family": "llama",
    "n_layers": 2,
    "hidden_size": 16,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_size": 24,
    "vocab_size": 31,
    "max_tokens": 128,
}
LLAMA3 = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Each as its published configuration is, but small, and with a larger epsilon and smaller bases, so
# that whoever drops one of them is far off.
SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {
        "norm_epsilon": 0.1,
        "rope_theta": 50.0,
        "head_size": 8,
        "rope_scaling": {"kind": "llama3", **LLAMA3, "original_max_tokens": 32},
        "qkv_bias": True,
        "output_bias": True,
    },
    "Mistral": {"norm_epsilon": 0.1, "rope_theta": 100.0, "head_size": 6},
    "Qwen2": {"norm_epsilon": 0.1, "rope_theta": 100.0, "qkv_bias": True, "tied_head": True},
    "Qwen3": {"norm_epsilon": 0.1, "rope_theta": 100.0, "qk_norm": True, "head_size": 6},
}
MAY_MATTER = ("norm_epsilon", "rope_theta", "rope_scaling", "qkv_bias", "output_bias", "qk_norm")
DROPPED = [
    (family, name) for family, options in SHAPES.items() for name in options if name in MAY_MATTER
]
every_family = pytest.mark.parametrize("family", SHAPES)
NAMES = {
    "attention_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.output": "mlp.down_proj",
    "embedding.tokens": "model.embed_tokens",
    "head.norm": "model.norm",
    "head.logits": "lm_head",
}


def shape_of(family: str) -> LlamaShape:
    return LlamaShape.model_validate(SIZES | SHAPES[family])


@cache
def theirs(family: str) -> nn.Module:
    """A random model of `transformers`, all of whose numbers matter."""
    shape = shape_of(family)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if family == "Llama":
        rope |= {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 32}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=0.1,
        rope_parameters=rope,
        tie_word_embeddings=shape.tied_head,
        head_dim=shape.head_size or 4,
        attention_bias=shape.output_bias,
        sliding_window=None,
    )
    model: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for seed, weight in enumerate(model.parameters()):
        nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    return model


def ours(family: str, shape: ModelShape) -> StageOfFamily:
    """The same model here; a shape may lack what the family has."""
    whole = family_of(shape)(shape, range(shape.n_layers), first=True, last=True)
    given = dict(translated(dict(theirs(family).named_parameters())))
    named = dict(whole.named_parameters())
    assert named.keys() <= given.keys()
    for name, weight in named.items():
        weight.data.copy_(given[name].detach())
    return whole


def translated(given: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of theirs by our names."""
    for name in given:
        own = name.replace("model.layers", "layers")
        for other, their in NAMES.items():
            own = own.replace(their, other)
        if "gate_proj" in name:
            both = (given[name], given[name.replace("gate", "up")])
            yield own.replace("mlp.gate_proj", "feed_forward.inner"), torch.cat(both)
        elif "up_proj" not in name:
            yield own, given[name]


def rows() -> Iterator[tuple[Tensor, Tensor, int]]:
    """Tokens of each sample, its targets, and the number of first tokens that are no targets."""
    for sample in SAMPLES:
        tokens = torch.cat([torch.from_numpy(side) for side in TOKENS.read(sample)])
        yield torch.cat([torch.tensor([START_ID]), tokens[:-1]]), tokens, sample.input_tokens


def their_loss(family: str) -> Tensor:
    """The sum over all targets."""
    loss = torch.zeros(())
    for read, labels, n_inputs in rows():
        logits = theirs(family)(input_ids=read[None]).logits[0]
        loss = loss + nn.functional.cross_entropy(
            logits[n_inputs:], labels[n_inputs:], reduction="sum"
        )
    return loss


def our_loss(model: StageOfFamily, *, is_packed: bool) -> Tensor:
    microbatch = packed(SAMPLES, fill=3) if is_packed else padded(SAMPLES)
    return run_stage(model, None, model.collate(microbatch, TOKENS))


@every_family
def test_logits_are_those_of_transformers(family: str) -> None:
    model: Any = ours(family, shape_of(family))
    head, model.head = model.head, None
    vectors = model.embedding.tokens.weight if head.logits is None else head.logits.weight
    for read, _, _ in rows():
        logits = head.norm(model(read[None])) @ vectors.T
        expected = theirs(family)(input_ids=read[None]).logits
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()


@every_family
@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
def test_losses_and_gradients_are_those_of_transformers(family: str, is_packed: bool) -> None:
    their_model, model = theirs(family), ours(family, shape_of(family))
    expected, found = their_loss(family), our_loss(model, is_packed=is_packed)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    theirs_named = dict(their_model.named_parameters())
    gradients = torch.autograd.grad(expected, list(theirs_named.values()))
    by_name = dict(translated(dict(zip(theirs_named, gradients, strict=True))))
    torch.autograd.backward(found)
    assert by_name.keys() == dict(model.named_parameters()).keys()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        scale = by_name[name].abs().max()
        assert (weight.grad - by_name[name]).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize(("family", "name"), DROPPED)
def test_without_an_option_of_the_family_the_loss_is_far_off(family: str, name: str) -> None:
    shape, expected = shape_of(family), their_loss(family).item()
    left_out = {name: LlamaShape.model_fields[name].default}
    found = our_loss(ours(family, shape.model_copy(update=left_out)), is_packed=False)
    assert abs(found.item() - expected) > 1e-3 * expected
