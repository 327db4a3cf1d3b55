"""A Llama against the same model written out in numpy, padded and packed, whole and in stages."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.examples.decoder_pipelines import SAMPLES, TOKENS, WEIGHTS, run, stages_of
from tests.examples.training_case import (
    LLAMA_SHAPE,
    PLAIN_LLAMA_SHAPE,
    START_ID,
    packed,
    padded,
)
from tests.oracles.plain_llama import losses

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.rope_scaling import LinearScaling, YarnScaling
from dynapipe_hpc.data.microbatch import DenseRows, Recompute
from dynapipe_hpc.models.attention_context import AttentionContext
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.rotary import Angles

DEFAULTS = {"norm_epsilon": 1e-5, "rope_theta": 10_000.0, "tied_head": False, "qk_norm": False}
SHAPES = {
    "all options": LLAMA_SHAPE,
    "plain": PLAIN_LLAMA_SHAPE,
    "one head for all": LLAMA_SHAPE.model_copy(update={"n_kv_heads": 1, "tied_head": False}),
    "defaults": PLAIN_LLAMA_SHAPE.model_copy(
        update={"n_kv_heads": None, "head_size": None, "rope_theta": 10_000.0}
    ),
    "divided positions": PLAIN_LLAMA_SHAPE.model_copy(
        update={"rope_scaling": LinearScaling(kind="linear", factor=3.0), "norm_epsilon": 0.3}
    ),
    "longer vectors": PLAIN_LLAMA_SHAPE.model_copy(
        update={
            "head_size": 8,
            "rope_scaling": YarnScaling(
                kind="yarn", factor=4.0, beta_fast=3.0, original_max_tokens=32
            ),
        }
    ),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def stages(shape: ModelShape, n_stages: int) -> list[DecoderStage]:
    return stages_of(DecoderStage, shape, n_stages)


def written_out(shape: ModelShape) -> float:
    """The loss of all samples, each alone in a row that starts at position 0."""
    (whole,) = stages(shape, 1)
    weights = {name: p.detach().numpy() for name, p in whole.named_parameters()}
    model = settings(shape)
    found = 0.0
    for sample in SAMPLES:
        inputs, targets = TOKENS.read(sample)
        own = [*inputs.tolist(), *targets.tolist()]
        of_labels = losses(weights, model, [START_ID, *own[:-1]], own)
        found += WEIGHTS[sample.sample_id] * sum(of_labels[len(inputs) :])
    return found


def settings(shape: ModelShape) -> Mapping[str, Any]:
    given = shape.model_dump()
    sizes = {"n_kv_heads": shape.n_heads, "head_size": shape.hidden_size // shape.n_heads}
    defaults = DEFAULTS | sizes
    return {n: defaults.get(n) if value is None else value for n, value in given.items()}


@every_shape
@pytest.mark.parametrize("n_stages", [1, 3])
def test_the_loss_is_that_of_the_model_written_out(shape: ModelShape, n_stages: int) -> None:
    expected, pipeline = written_out(shape), stages(shape, n_stages)
    for microbatch in (padded(SAMPLES, shape), packed(SAMPLES), packed(SAMPLES, fill=7)):
        assert run(pipeline, microbatch).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_gradients_of_a_packed_row_are_the_sum_of_those_of_documents_alone(
    mode: Recompute,
) -> None:
    (together,), (apart,) = stages(LLAMA_SHAPE, 1), stages(LLAMA_SHAPE, 1)
    torch.autograd.backward(run([together], packed(SAMPLES, 3), mode))
    for sample in SAMPLES:
        torch.autograd.backward(run([apart], padded([sample])))
    expected = dict(apart.named_parameters())
    for name, weight in together.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-11, atol=1e-12)


def test_positions_of_densely_packed_rows_go_on() -> None:
    (whole,) = stages(PLAIN_LLAMA_SHAPE, 1)
    weights = {name: p.detach().numpy() for name, p in whole.named_parameters()}
    read, labels, counts = [], [], []
    for sample in SAMPLES[:2]:
        inputs, targets = (side.tolist() for side in TOKENS.read(sample))
        read += [START_ID, *inputs, *targets[:-1]]
        labels += [*inputs, *targets]
        counts += [0.0] * len(inputs) + [WEIGHTS[sample.sample_id]] * len(targets)
    found = losses(weights, settings(PLAIN_LLAMA_SHAPE), read, labels)
    expected = sum(loss * count for loss, count in zip(found, counts, strict=True))
    microbatch = DenseRows(((1, 2),), 16)
    assert run([whole], microbatch).item() == pytest.approx(expected, rel=1e-12)


@every_shape
def test_every_split_starts_with_the_bits_of_the_whole_model(shape: ModelShape) -> None:
    whole = DecoderStage(shape, range(4), first=True, last=True, seed=3).state_dict()
    halves = [
        DecoderStage(shape, layers, first=layers.start == 0, last=layers.stop == 4, seed=3)
        for layers in (range(1), range(1, 4))
    ]
    parts = [half.state_dict() for half in halves]
    assert {name for part in parts for name in part} == whole.keys()
    for part in parts:
        for name, weight in part.items():
            assert torch.equal(weight, whole[name]), name
    assert ("head.logits.weight" in whole) == (not shape.tied_head)


def test_positions_begin_anew_in_every_document() -> None:
    # Attention sees distances only, so losses would be the same but for rounding.
    (whole,), hidden = stages(PLAIN_LLAMA_SHAPE, 1), torch.empty(0, dtype=torch.float64)
    documents = Documents.between((0, 3, 4, 9), 11)
    found = whole._with_angles(AttentionContext(documents), 11, hidden)
    positions = torch.tensor([0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1])
    expected = Angles.from_positions(PLAIN_LLAMA_SHAPE, positions, torch.float64)
    assert found.angles is not None
    assert all(torch.equal(*both) for both in zip(found.angles, expected, strict=True))
    assert found.documents is documents


def test_gradients_of_turned_vectors_are_turned_back() -> None:
    shape, positions = PLAIN_LLAMA_SHAPE, torch.tensor([0, 1, 5])
    angles = Angles.from_positions(shape, positions, torch.float64)
    vectors = torch.randn(2, 3, 4, shape.head_width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(angles.turn, vectors)


def test_angles_of_16_bits_are_computed_in_32() -> None:
    positions = torch.tensor([4097])  # bfloat16 knows 4096 and 4112
    model = PLAIN_LLAMA_SHAPE.model_copy(update={"max_tokens": 5000})
    narrow, wide = (
        Angles.from_positions(model, positions, t) for t in (torch.bfloat16, torch.float32)
    )
    for found, expected in zip(narrow, wide, strict=True):
        torch.testing.assert_close(found, expected.bfloat16(), rtol=0, atol=0)
