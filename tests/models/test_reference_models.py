"""Our models give the losses of those of `transformers`, where it is installed."""

import re
from collections.abc import Callable, Mapping

import pytest
import torch
from tests.examples.training_case import RandomTokens
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.tokens.iteration_tokens import IterationTokens
from dynapipe_hpc.plan.model_shape import ModelShape

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install '.[reference]'"
)

START = 30
SAMPLES = {s.sample_id: s for s in (Sample(1, 9, 4), Sample(2, 3, 7), Sample(3, 150, 20))}
TOKENS = IterationTokens(SAMPLES, dict.fromkeys(SAMPLES, 1.0), RandomTokens(), START)
GPT = ModelShape(n_layers=3, hidden_size=16, n_heads=2, ffn_size=40, vocab_size=31, max_tokens=200)
T5 = ModelShape(
    family="t5",
    n_layers=3,
    hidden_size=12,
    n_heads=2,
    head_size=5,
    ffn_size=20,
    vocab_size=31,
    max_tokens=200,
)

GPT_NAMES = (
    ("embedding.tokens", "transformer.wte"),
    ("embedding.positions", "transformer.wpe"),
    ("layers.", "transformer.h."),
    ("attention_norm", "ln_1"),
    ("feed_forward_norm", "ln_2"),
    ("attention.query_key_value", "attn.c_attn"),
    ("attention.output", "attn.c_proj"),
    ("feed_forward.inner", "mlp.c_fc"),
    ("feed_forward.output", "mlp.c_proj"),
    ("head.norm", "transformer.ln_f"),
    ("head.logits", "lm_head"),
)
T5_NAMES = (
    (r"^embedding", "shared"),
    (r"_norm\.weight$", "_layer_norm.weight"),
    (r"(en|de)coder_layer_norm", r"\1coder.final_layer_norm"),
    (r"(en|de)coder_bias", r"\1coder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    (r"coder\.(\d)", r"coder.block.\1.layer"),
    (r"layer\.attention_layer_norm", "layer.0.layer_norm"),
    (r"layer\.cross_attention_layer_norm", "layer.1.layer_norm"),
    (r"layer\.attention", "layer.0.SelfAttention"),
    (r"layer\.cross_attention", "layer.1.EncDecAttention"),
    (r"(encoder.*layer)\.feed_forward_layer_norm", r"\1.1.layer_norm"),
    (r"(decoder.*layer)\.feed_forward_layer_norm", r"\1.2.layer_norm"),
    (r"(encoder.*layer)\.feed_forward", r"\1.1.DenseReluDense"),
    (r"(decoder.*layer)\.feed_forward", r"\1.2.DenseReluDense"),
    (r"Attention\.query", "Attention.q"),
    (r"Attention\.output", "Attention.o"),
    (r"Dense\.inner", "Dense.wi"),
    (r"Dense\.output", "Dense.wo"),
)


def translated(name: str, names: tuple[tuple[str, str], ...]) -> str:
    for pattern, other in names:
        name = re.sub(pattern, other, name)
    return name


def gpt2(weights: Mapping[str, Tensor]) -> Callable[[list[int], list[int]], Tensor]:
    """The losses of the targets of a sample."""
    config = transformers.GPT2Config(
        vocab_size=31,
        n_positions=200,
        n_embd=16,
        n_layer=3,
        n_head=2,
        n_inner=40,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    renamed = {
        translated(name, GPT_NAMES): w.T if ".layers." in f".{name}" and w.ndim == 2 else w
        for name, w in weights.items()
    }
    model.load_state_dict(renamed)

    def losses(inputs: list[int], targets: list[int]) -> Tensor:
        whole = [*inputs, *targets]
        logits = model(input_ids=torch.tensor([[START, *whole[:-1]]])).logits[0]
        return cross_entropies(logits[len(inputs) :], targets)

    return losses


def t5(weights: Mapping[str, Tensor]) -> Callable[[list[int], list[int]], Tensor]:
    """The losses of the targets of a sample."""
    config = transformers.T5Config(
        vocab_size=31,
        d_model=12,
        d_kv=5,
        d_ff=20,
        num_layers=3,
        num_heads=2,
        dropout_rate=0.0,
        feed_forward_proj="relu",
        decoder_start_token_id=START,
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    renamed = {}
    for name, weight in weights.items():
        other = translated(name, T5_NAMES)
        if name.endswith("key_value.weight"):
            for part, half in zip("kv", weight.chunk(2), strict=True):
                renamed[other.replace("key_value", part)] = half
        else:
            renamed[other] = weight
    shared = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    model.load_state_dict({**renamed, **dict.fromkeys(shared, weights["embedding.weight"])})

    def losses(inputs: list[int], targets: list[int]) -> Tensor:
        decoder_ids = torch.tensor([[START, *targets[:-1]]])
        found = model(input_ids=torch.tensor([inputs]), decoder_input_ids=decoder_ids)
        return cross_entropies(found.logits[0], targets)

    return losses


def cross_entropies(logits: Tensor, labels: list[int]) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels), reduction="none")


@pytest.mark.parametrize(
    ("shape", "reference", "error"),
    # Their T5 takes the mean squares of its norms in float32 whatever the type of its weights.
    [(GPT, gpt2, 1e-12), (T5, t5, 1e-8)],
    ids=["gpt", "t5"],
)
def test_losses_are_those_of_transformers(
    shape: ModelShape,
    reference: Callable[[Mapping[str, Tensor]], Callable[[list[int], list[int]], Tensor]],
    error: float,
) -> None:
    whole = family_of(shape)(
        shape, range(shape.n_all_layers), first=True, last=True, dtype=torch.float64
    )
    for seed, weight in enumerate(whole.parameters()):
        torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    losses = reference({name: p.detach() for name, p in whole.named_parameters()})
    for sample in SAMPLES.values():
        batch = whole.collate(row_of(sample, shape), TOKENS)
        found = whole.run(None, batch, Recompute.NONE)
        sides = (sample.input_tokens, sample.target_tokens)
        tokens = (side.tolist() for side in RandomTokens().read(sample.sample_id, *sides))
        assert found.item() == pytest.approx(losses(*tokens).sum().item(), rel=error)


def row_of(sample: Sample, shape: ModelShape) -> MicroBatch:
    rows = ((sample.sample_id,),)
    if shape.architecture.has_target_rows:
        return MicroBatch(rows, sample.input_tokens, target_tokens=sample.target_tokens)
    return MicroBatch(rows, sample.tokens)
