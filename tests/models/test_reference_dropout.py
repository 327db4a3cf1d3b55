"""Dropout is where `transformers` has it, where that is installed; its masks are those of docs."""

from functools import partial
from typing import Any

import pytest
import torch
from tests.examples.training_case import RandomTokens, run_stage
from tests.oracles.in_float64 import their_losses
from tests.oracles.peft_models import PeftModel
from tests.oracles.plain_dropout import factors
from tests.oracles.transformers_models import THEIR_TYPES, renamed, state_of, their_model
from torch import Tensor, nn

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.family import family_of

SEED, RATE, ITERATION, START = 3, 0.25, 6, 0
SAMPLE = Sample(17, 9, 6)
GPT = GptShape(
    n_layers=2, hidden_size=12, n_heads=2, ffn_size=20, vocab_size=31, max_tokens=40, dropout=RATE
)
T5 = T5Shape.model_validate({**GPT.model_dump(exclude_defaults=True), "head_size": 5})
GATED = T5.model_copy(update={"gated": True})
ADAPTED = T5.model_copy(update={"lora": Lora(rank=2, alpha=3.0)})
# Names of their modules, and of the maps that have our dropouts.
IN_T5 = {
    "encoder.block.{}.layer.0": "encoder.{}.attention.output",
    "encoder.block.{}.layer.1": "encoder.{}.feed_forward.output",
    "encoder.block.{}.layer.1.DenseReluDense": "encoder.{}.feed_forward",
    "decoder.block.{}.layer.0": "decoder.{}.attention.output",
    "decoder.block.{}.layer.1": "decoder.{}.cross_attention.output",
    "decoder.block.{}.layer.2": "decoder.{}.feed_forward.output",
    "decoder.block.{}.layer.2.DenseReluDense": "decoder.{}.feed_forward",
}
IN_GPT = {
    "transformer.h.{}.attn.resid_dropout": "layers.{}.attention.output.dropout",
    "transformer.h.{}.mlp.dropout": "layers.{}.feed_forward.output.dropout",
}


def places(shape: ModelShape) -> dict[str, tuple[str, ...]]:
    """Places of each of their dropouts, by its name, in the order in which it is called."""
    layers = range(2)
    if shape.family == "gpt":
        names = IN_GPT.items()
        within = {other.format(i): (own.format(i),) for other, own in names for i in layers}
        return {"transformer.drop": ("embedding.dropout",), **within}
    sides = ("encoder", "decoder")
    ends = {f"{side}.dropout": (f"{side}_input", f"{side}_output") for side in sides}
    return ends | {
        f"{theirs.format(i)}.dropout": (f"{ours.format(i)}.dropout",)
        for theirs, ours in IN_T5.items()
        for i in layers
    }


def drop(names: list[str], values: Tensor) -> Tensor:
    """Theirs, with a mask of the next place."""
    tokens = [(ITERATION, SAMPLE.sample_id, i) for i in range(values.shape[1])]
    mask = factors(SEED, names.pop(0), RATE, [*tokens], values.shape[-1])
    return values * torch.from_numpy(mask)


def with_our_masks(model: Any, shape: ModelShape) -> list[list[str]]:
    """Lets their model, in training, take our masks; those of attention are left out."""
    left, by_name = [], places(shape)
    for name, module in model.named_modules():
        if hasattr(module, "relative_attention_num_buckets"):
            module.dropout = 0.0
        elif isinstance(module, nn.Dropout) and name in by_name:
            left.append(list(by_name.pop(name)))
            setattr(module, "forward", partial(drop, left[-1]))  # noqa: B010 - a method
        elif isinstance(module, nn.Dropout):
            assert name.endswith("attn_dropout"), name
    assert not by_name
    return left


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "shape", [GPT, T5, GATED, ADAPTED], ids=["gpt", "t5", "gated t5", "t5 with adapters"]
)
def test_losses_and_gradients_are_those_of_transformers(shape: ModelShape) -> None:
    layers = range(shape.n_all_layers)
    make = partial(family_of(shape), shape, layers, first=True, last=True)
    ours = make(seed=SEED, dtype=torch.float64)
    for seed, weight in enumerate(ours.parameters()):
        nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))

    weights = {n: p.detach() for n, p in ours.named_parameters()}
    if shape.lora:
        adapted = PeftModel(shape, weights)
        model = adapted.model.base_model.model
    else:
        model = their_model(shape)
        model.load_state_dict(state_of(weights, shape))
    left = with_our_masks(model.train(), shape)
    inputs, targets = (side.tolist() for side in RandomTokens()(SAMPLE)[:2])
    module = THEIR_TYPES[shape.family]
    expected = their_losses(module, model, inputs, targets, START).sum()
    torch.autograd.backward(expected)
    assert not any(left)

    read = RandomTokens()(SAMPLE)._replace(start=START)
    tokens = IterationTokens({17: SAMPLE}, {17: 1.0}, lambda _: read, START, iteration=ITERATION)
    is_t5 = shape.family == "t5"
    rows = PaddedRows((17,), 9 if is_t5 else 15, target_tokens=6 if is_t5 else 0)
    loss = run_stage(ours, None, ours.collate(rows, tokens), Recompute.SELECTIVE)
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    found, theirs = gradients_of(ours), gradients_of(model)
    if shape.lora:
        theirs = adapted.gradients()
    else:
        found = renamed(found, shape)
    for name, gradient in found.items():
        scale = float(theirs[name].abs().max())
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-10, atol=1e-10 * scale, msg=name)
