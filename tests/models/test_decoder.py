"""Decoders against the same models in plain operations: in all layouts, whole and in stages."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.examples.any_decoders import SAMPLES, TOKENS, WEIGHTS, run, stages_of
from tests.examples.training_case import (
    CPU,
    GATED_T5_SHAPE,
    LLAMA_SHAPE,
    PLAIN_LLAMA_SHAPE,
    SHAPE,
    START_ID,
    T5_SHAPE,
    TIED_SHAPE,
    RandomTokens,
    laid_out,
    name_of,
    packed,
    padded,
    random_samples,
    run_stage,
)
from tests.oracles.plain_dropout import factors
from tests.oracles.plain_models import gpt_row, llama_row

from dynapipe_hpc.architecture.decoder import DecoderShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.rope_scaling import LinearScaling, YarnScaling
from dynapipe_hpc.data.microbatch import DenseRows, Layout, MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import Batch, IterationTokens
from dynapipe_hpc.models.decoder import DecoderStage
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.dropout import Dropout, dropout_keys, set_dropout
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.rotary import Angles

SHAPES: dict[str, DecoderShape] = {
    "gpt": SHAPE,
    "gpt, tied": TIED_SHAPE.model_copy(update={"norm_epsilon": 1e-2}),
    "llama, all options": LLAMA_SHAPE,
    "llama": PLAIN_LLAMA_SHAPE,
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


def stages(
    n_stages: int, shape: DecoderShape = SHAPE, dtype: torch.dtype = torch.float64
) -> list[DecoderStage]:
    return stages_of(DecoderStage, shape, n_stages, dtype)


def written_out(shape: DecoderShape, rows: Sequence[Sequence[Sample]]) -> float:
    """The loss of rows of samples, each read behind a start token, by the plain model."""
    (whole,) = stages(1, shape)
    weights = whole.state_dict()
    settings = shape.layer_settings._asdict()
    model = shape.model_dump() | settings | {"head_size": shape.head_width}
    model |= {"rope_scaling": shape.model_dump().get("rope_scaling")}
    losses_of = gpt_row if shape.family == "gpt" else llama_row
    found = 0.0
    for row in rows:
        read, labels, counts = [], [], []
        for sample in row:
            inputs, targets = (side.tolist() for side in TOKENS.read(sample)[:2])
            read += [START_ID, *[*inputs, *targets][:-1]]
            labels += [*inputs, *targets]
            counts += [0.0] * len(inputs) + [WEIGHTS[sample.sample_id]] * len(targets)
        losses = losses_of(weights, model, read, labels)
        found += float(losses @ torch.tensor(counts, dtype=torch.float64))
    return found


@every_shape
@pytest.mark.parametrize("n_stages", [1, 3])
def test_the_loss_is_that_of_the_model_written_out(shape: DecoderShape, n_stages: int) -> None:
    expected, pipeline = written_out(shape, [[each] for each in SAMPLES]), stages(n_stages, shape)
    for microbatch in (padded(SAMPLES, shape), packed(SAMPLES), packed(SAMPLES, fill=7)):
        assert run(pipeline, microbatch).item() == pytest.approx(expected, rel=1e-12)


def initial(shape: ModelShape, layers: range) -> StageOfFamily:
    first, last = layers.start == 0, layers.stop == shape.n_all_layers
    return family_of(shape)(shape, layers, first=first, last=last, seed=3, dtype=torch.float64)


@pytest.mark.parametrize("shape", [*SHAPES.values(), T5_SHAPE], ids=[*SHAPES, "t5"])
@pytest.mark.parametrize("n_stages", [2, 3, 4])
def test_every_split_starts_with_the_bits_of_the_whole_model(
    shape: ModelShape, n_stages: int
) -> None:
    whole = initial(shape, range(shape.n_all_layers)).state_dict()
    layers = Placement.equal_shares(shape.n_all_layers, n_stages).layers
    parts = [initial(shape, each).state_dict() for each in layers]
    assert {name for part in parts for name in part} == whole.keys()
    for part in parts:
        for name, weight in part.items():
            assert torch.equal(weight, whole[name]), name
    assert ("head.logits.weight" in whole) == (not shape.tied_head)


def test_positions_begin_anew_in_every_document() -> None:
    # Attention sees distances only, so losses would be the same but for rounding.
    (whole,), seen = stages(1, PLAIN_LLAMA_SHAPE), []
    whole.layers["0"].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2]))
    documents = Documents.between((0, 3, 4, 9), 11)
    tokens = torch.zeros(1, 11, dtype=torch.int64)
    whole.run(None, Batch((1, 11), documents, tokens), Recompute.NONE)
    positions = torch.tensor([0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1])
    expected = Angles.from_positions(PLAIN_LLAMA_SHAPE, positions, torch.float64)
    assert all(torch.equal(*both) for both in zip(seen[0].angles, expected, strict=True))
    assert seen[0].segments is documents


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


def test_samples_of_other_lengths_than_the_plan_says_are_refused() -> None:
    microbatch = replace(packed(SAMPLES), offsets=(0, 13, 15, 34, 47, 52))
    message = "sample 2 has 1 tokens, but lies from 13 to 15 in a packed row"
    with pytest.raises(ValueError, match=message):
        stages(1)[0].collate(microbatch, TOKENS)


@every_shape
def test_positions_of_densely_packed_rows_go_on(shape: DecoderShape) -> None:
    found = run(stages(1, shape), DenseRows(((1, 2), (4,)), 16))
    expected = written_out(shape, [SAMPLES[:2], [SAMPLES[3]]])
    assert found.item() == pytest.approx(expected, rel=1e-12)


RATE, SEED, ITERATION = 0.3, 5, 11
DROPPED_SAMPLES = {s.sample_id: s for s in random_samples(1, 5)}
each_shape = pytest.mark.parametrize("shape", [SHAPE, T5_SHAPE, GATED_T5_SHAPE], ids=name_of)


def dropout(name: str = "here") -> torch.nn.Module:
    made = torch.nn.ModuleDict({name: Dropout()})
    set_dropout(made, RATE, SEED)
    return made[name]


def test_a_mask_is_of_seed_place_iteration_sample_position_and_column() -> None:
    keys = dropout_keys(
        ITERATION, [[7, 2**40], [3]], {7: range(3), 2**40: range(2), 3: range(4)}, 6
    )
    values = torch.randn(2, 6, 9, dtype=torch.float64, generator=torch.manual_seed(1))
    found = dropout()(values, keys)
    first = [*((ITERATION, 7, i) for i in range(3)), *((ITERATION, 2**40, i) for i in range(2))]
    second = [(ITERATION, 3, i) for i in range(4)]
    for row, tokens in enumerate((first, second)):
        expected = factors(SEED, "here", RATE, [*tokens], 9) * values[row, : len(tokens)].numpy()
        np.testing.assert_allclose(found[row, : len(tokens)].numpy(), expected, rtol=1e-14)
    assert torch.equal(dropout()(values[..., 4:], keys, 4), found[..., 4:])


def whole(shape: ModelShape, rate: float) -> StageOfFamily:
    shape, layers = shape.model_copy(update={"dropout": rate}), range(shape.n_all_layers)
    return family_of(shape)(shape, layers, first=True, last=True, device=CPU)


def microbatch(shape: ModelShape) -> MicroBatch:
    return laid_out(list(DROPPED_SAMPLES.values()), Layout.PADDED, shape)


def tokens(iteration: int | None) -> IterationTokens:
    weights = dict.fromkeys(DROPPED_SAMPLES, 0.1)
    return IterationTokens(DROPPED_SAMPLES, weights, RandomTokens(), START_ID, iteration=iteration)


@each_shape
def test_there_is_none_outside_training(shape: ModelShape) -> None:
    losses = {}
    for rate, iteration in ((0.0, 1), (RATE, None), (RATE, 1), (RATE, 2)):
        module = whole(shape, rate)
        batch = module.collate(microbatch(shape), tokens(iteration))
        losses[rate, iteration] = run_stage(module, None, batch).item()
    assert losses[RATE, None] == losses[0.0, 1]
    assert len(set(losses.values())) == 3
