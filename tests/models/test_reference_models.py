"""Our models give the losses of those of `transformers`, where it is installed."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import RandomTokens
from tests.oracles.transformers_models import state_of, their_losses, their_model
from torch import Tensor

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import IterationTokens
from dynapipe_hpc.models.family import StageOfFamily, family_of

START = 30
SAMPLES = {s.sample_id: s for s in (Sample(1, 9, 4), Sample(2, 3, 7), Sample(3, 150, 20))}
TOKENS = IterationTokens(SAMPLES, dict.fromkeys(SAMPLES, 1.0), RandomTokens(), START)
GPT = GptShape(n_layers=3, hidden_size=16, n_heads=2, ffn_size=40, vocab_size=31, max_tokens=200)
TIED_GPT = GPT.model_copy(update={"tied_head": True, "norm_epsilon": 1e-2})
T5 = T5Shape(
    n_layers=3,
    hidden_size=12,
    n_heads=2,
    head_size=5,
    ffn_size=20,
    vocab_size=31,
    max_tokens=200,
)
LOOSE_T5 = T5.model_copy(update={"norm_epsilon": 1e-2})


def losses(weights: Mapping[str, Tensor], shape: ModelShape, sample: Sample) -> Tensor:
    """The losses of the targets of a sample, by a model of `transformers`."""
    model, named = their_model(shape), state_of(weights, shape)
    assert named.keys() == dict(model.named_parameters(remove_duplicate=False)).keys()
    inputs, targets = RandomTokens().read(
        sample.sample_id, sample.input_tokens, sample.target_tokens
    )

    def computed(**read: Tensor) -> Any:
        return torch.func.functional_call(model, named, (), read)

    return their_losses(computed, shape, inputs.tolist(), targets.tolist(), START)


@pytest.mark.parametrize(
    "shape",
    [GPT, TIED_GPT, T5, LOOSE_T5],
    ids=["gpt", "gpt as published", "t5", "t5 with another epsilon"],
)
def test_losses_are_those_of_transformers(shape: ModelShape) -> None:
    whole = random_model(shape)
    weights = {name: p.detach() for name, p in whole.named_parameters()}
    for sample in SAMPLES.values():
        batch = whole.collate(row_of(sample, shape), TOKENS)
        found = run_stage(whole, None, batch)
        expected = losses(weights, shape, sample).sum().item()
        assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [GPT, TIED_GPT], ids=["gpt", "gpt as published"])
def test_gradients_are_those_of_transformers(shape: ModelShape) -> None:
    whole, sample = random_model(shape), SAMPLES[3]
    weights = {name: p.detach().requires_grad_() for name, p in whole.named_parameters()}
    expected = torch.autograd.grad(losses(weights, shape, sample).sum(), list(weights.values()))
    batch = whole.collate(row_of(sample, shape), TOKENS)
    torch.autograd.backward(run_stage(whole, None, batch))
    for (name, weight), gradient in zip(whole.named_parameters(), expected, strict=True):
        scale = float(gradient.abs().max())
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-10, atol=1e-12 * scale, msg=name)


def random_model(shape: ModelShape) -> StageOfFamily:
    """The unsplit model, all of whose numbers matter."""
    layers = range(shape.n_all_layers)
    whole = family_of(shape)(shape, layers, first=True, last=True, dtype=torch.float64)
    for seed, weight in enumerate(whole.parameters()):
        torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    return whole


def row_of(sample: Sample, shape: ModelShape) -> MicroBatch:
    ids = (sample.sample_id,)
    if shape.has_target_rows:
        return PaddedRows(ids, sample.input_tokens, target_tokens=sample.target_tokens)
    return PaddedRows(ids, sample.tokens)
