"""Decoders of `transformers` in two stages, against the same models run by a plain loop."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.any_decoders import (
    DECODERS,
    SAMPLES,
    TOKENS,
    gradients,
    loaded_stages,
    origin_of,
    outcome,
    plain_loss,
    plain_losses,
    saved_decoder,
)
from tests.examples.preference_training import Answer, random_pairs
from tests.examples.sliced_case import sliced_row, slices_of
from tests.examples.small_models import set_in_config
from tests.examples.training_case import START_ID, RandomTokens, packed, padded
from tests.oracles.in_float64 import in_float64
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.load import sizes_of_origin
from dynapipe_hpc.models.batch import Batch, IterationTokens
from dynapipe_hpc.models.deferred_weights import DeferredWeights, deferring
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.transformers.stage import TransformersStage
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.read_weights import open_weights

SLICED_DECODERS = tuple(name for name in DECODERS if name not in ("gemma2", "falcon"))
A, B = slices_of(SAMPLES[2], (0.1, 0.6)), slices_of(SAMPLES[3], (1,))
SLICED: list[MicroBatch] = [
    sliced_row(SAMPLES[2], A[0]),
    padded(SAMPLES[:1]),
    sliced_row(SAMPLES[3], B[0]),
    sliced_row(SAMPLES[2], A[1], SAMPLES[1:2]),
    packed(SAMPLES[4:]),
    sliced_row(SAMPLES[3], B[1]),
    sliced_row(SAMPLES[2], A[2]),
]
"""All samples: of two the slices, in turns, one with a whole sample behind it, and others."""
PAIRS = random_pairs(1, 4)
PAIR_TOKENS = IterationTokens(
    {pair.sample_id: pair for pair in PAIRS},
    {pair.sample_id: 1.0 for pair in PAIRS},
    RandomTokens(),
    START_ID,
)
every_decoder = pytest.mark.parametrize("name", DECODERS)


@pytest.fixture
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.getbasetemp() / "decoders" / name
    if not path.exists():
        with in_float64(DECODERS[name].module):
            saved_decoder(name, path)
    return path


def stages(folder: Path, n_stages: int = 2) -> list[StageOfFamily]:
    return loaded_stages(origin_of(folder)[0], n_stages)


@every_decoder
def test_stages_compute_the_loss_and_gradients_of_a_plain_loop(
    name: str, folder: Path, tmp_path: Path
) -> None:
    module = DECODERS[name].module
    with in_float64(module):
        model: Any = saved_decoder(name, tmp_path)
    loss = plain_loss(module, model)
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    batches: list[list[MicroBatch]] = [[padded(SAMPLES)], [packed(SAMPLES, fill=3)]]
    for microbatches in [*batches, SLICED] if name in SLICED_DECODERS else batches:
        for mode, splits in product((Recompute.NONE, Recompute.FULL), (False, True)):
            pipeline = stages(folder)
            found_loss, found = outcome(pipeline, microbatches, mode, splits=splits)
            assert found_loss == pytest.approx(loss, rel=1e-10)
            assert found.keys() == expected.keys()
            for key, gradient in expected.items():
                scale = float(gradient.abs().max())
                torch.testing.assert_close(
                    found[key],
                    gradient,
                    rtol=1e-10,
                    atol=1e-11 * scale,
                    msg=f"{key} {mode} {splits}",
                )


@every_decoder
def test_answers_of_preference_pairs_are_those_behind_prompts_of_their_own(
    name: str, folder: Path, tmp_path: Path
) -> None:
    (stage,), row = stages(folder, 1), packed_microbatch(PAIRS, Recompute.NONE)
    batch = stage.collate(row, PAIR_TOKENS)
    if name == "gemma2":
        with pytest.raises(ValueError, match="soft caps takes neither slices nor preference pairs"):
            stage.run(None, batch, Recompute.NONE)
        return
    with in_float64(DECODERS[name].module):
        model: Any = saved_decoder(name, tmp_path)
    expected = torch.cat([losses for pair in PAIRS for losses in answer_losses(name, model, pair)])
    direction = torch.linspace(-1, 2, len(expected), dtype=torch.float64)
    (direction * expected).sum().backward()  # type: ignore[no-untyped-call]
    for mode in (Recompute.NONE, Recompute.FULL):
        losses = stage.run(None, batch, mode)[0]
        found = torch.cat([losses[begin:end] for begin, end in answer_spans(row)])
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        stage.zero_grad()
        (direction * found).sum().backward()  # type: ignore[no-untyped-call]
        own = gradients([stage])
        for key, weight in model.named_parameters():
            if weight.grad is not None:
                scale = 1e-11 * float(weight.grad.abs().max())
                torch.testing.assert_close(own[key], weight.grad, rtol=1e-10, atol=scale, msg=key)


def answer_losses(name: str, model: Any, pair: Sample) -> list[Tensor]:
    """Losses of the tokens of the chosen and of the rejected answer, each behind the prompt."""
    found = []
    for is_rejected in (False, True):
        answer = Answer(pair, rejected=is_rejected)
        labels = [*answer.prompt.tolist(), *answer.answer.tolist()]
        losses = plain_losses(DECODERS[name].module, model, labels)
        found.append(losses[pair.input_tokens :])
    return found


def answer_spans(row: PackedRow) -> list[tuple[int, int]]:
    """Begins and ends of answers in a row of `PAIRS`, in the order of `answer_losses`."""
    spans = []
    for pair, branch in zip(PAIRS, row.branches, strict=True):
        spans.append((branch.begin - pair.target_tokens, branch.begin))
        spans.append((branch.begin, branch.begin + pair.rejected_tokens))
    return spans


@every_decoder
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_gradients_of_all_linear_maps_wait_and_no_others(lora: Lora | None, folder: Path) -> None:
    shape = origin_of(folder)[1].model_copy(update={"lora": lora})
    stage = TransformersStage(shape, range(1, 3), first=False, last=False, dtype=torch.float64)
    hidden = torch.zeros(2, 8, shape.hidden_size, dtype=torch.float64, requires_grad=True)
    batch = Batch((2, 8))
    for mode in (Recompute.NONE, Recompute.FULL):
        queue = DeferredWeights()
        with deferring(queue):
            output = stage.run(hidden, batch, mode)
        torch.autograd.backward(output, torch.ones_like(output))
        trained = {n: w for n, w in stage.named_parameters() if w.requires_grad}
        found = {n for n, w in trained.items() if any(w is each for each in queue.weights)}
        maps = tuple(shape.linear_layers)
        expected = (
            {n for n in trained if lora or n.removesuffix(".weight").endswith(maps)}
            if mode is Recompute.NONE
            else set()
        )
        assert found == expected


LONGEST = max(sample.tokens for sample in SAMPLES)


def long_rope(original: int) -> dict[str, Any]:
    rope = {"rope_type": "longrope", "rope_theta": 50.0, "long_factor": [2.0, 6.0]}
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {**rope, "short_factor": [1.0, 1.5]},
    }


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 50.0, "factor": 4.0}}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("phi3", long_rope(LONGEST)), ("llama", DYNAMIC)],
    ids=["longrope", "dynamic"],
)
def test_losses_are_those_of_a_plain_loop(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with in_float64(name):
        model = saved_decoder(name, tmp_path, **settings)
    origin, shape = origin_of(tmp_path)
    shape = shape.model_copy(update={"max_tokens": LONGEST})
    stage = TransformersStage(shape, range(4), first=True, last=True, dtype=torch.float64)
    open_weights(origin, shape).read(whole_parts(stage))
    together = packed(SAMPLES)
    found = stage.run(None, stage.collate(together, TOKENS), Recompute.NONE)[0]
    for sample, begin in zip(SAMPLES, together.offsets, strict=False):
        inputs, targets, *_ = TOKENS.read(sample)
        labels = [*inputs.tolist(), *targets.tolist()]
        expected = plain_losses(name, model, labels)
        own = found[begin : begin + sample.tokens]
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-10)
        alone = stage.run(None, stage.collate(padded([sample]), TOKENS), Recompute.NONE)[0]
        torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-10)


def test_longer_rows_than_short_factors_are_for_are_refused(tmp_path: Path) -> None:
    with in_float64("phi3"):
        saved_decoder("phi3", tmp_path, **long_rope(16))
    assert origin_of(tmp_path)[1].max_tokens == 16
    model = {"init_from": str(tmp_path), "family": "transformers", "max_tokens": 17}
    message = r"at most 16 \(original_max_position_embeddings\), as a longer .*longrope\), not 17"
    with pytest.raises(InputError, match=message):
        sizes_of_origin(model)
    assert sizes_of_origin({**model, "max_tokens": 16}) is not None


def test_the_default_of_a_class_is_read_where_the_file_has_none(tmp_path: Path) -> None:
    with in_float64("phi3"):
        saved_decoder("phi3", tmp_path, **long_rope(16), max_position_embeddings=8192)
    set_in_config(tmp_path, "original_max_position_embeddings")
    origin, shape = origin_of(tmp_path)
    assert shape.max_tokens == origin.longest == 4096
