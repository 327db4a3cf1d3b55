"""Losses on what a dataset marks, on targets and on everything, against models written out."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
import torch
from tests.examples.tokenized import sampler_of, write_samples
from tests.examples.training_case import laid_out, run_stage
from tests.oracles.plain_models import gpt_row, t5_losses

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.config import DataConfig, LossOn
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.long_samples import reader_of, trained_tokens_of
from dynapipe_hpc.data.microbatch import DenseRows, Layout, MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.token_loader import TokenLoader

EOS = 30
SAMPLES = [
    ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12], "chat"),
    ([13, 14], [15, 16, EOS], "pairs"),
    ([17, 18, 19, 20, 21], [22, 23], "chat"),
    ([], [24, 25, EOS], "pairs"),
]
SPANS = [[(1, 3), (5, 7), (8, 11)], [], [(0, 2), (5, 7)], [(0, 2)]]
MARKS = ["011001101110", "00111", "1100011", "110"]
"""The same, a digit per token."""
GPT = GptShape(n_layers=2, hidden_size=16, n_heads=2, ffn_size=32, vocab_size=31, max_tokens=32)
T5 = T5Shape(
    n_layers=2, hidden_size=12, n_heads=2, head_size=5, ffn_size=20, vocab_size=31, max_tokens=32
)


def model_of(shape: ModelShape) -> StageOfFamily:
    whole = family_of(shape)(
        shape, range(shape.n_all_layers), first=True, last=True, dtype=torch.float64
    )
    for seed, weight in enumerate(whole.parameters()):
        torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    return whole


def config_of(**choices: object) -> DataConfig:
    tables = {"dataset": "x.h5", "max_tokens": 12, "tokens_per_batch": 100, **choices}
    return DataConfig.model_validate(tables)


class Used(NamedTuple):
    """Tokens of a sample: the first that is read, those read and predicted, and their marks."""

    start: int
    inputs: list[int]
    targets: list[int]
    marks: list[bool]


def used(config: DataConfig, *, has_start: bool) -> dict[int, Used]:
    """Every sample, cut as configured, by slices alone."""
    found = {}
    for i, (all_inputs, all_targets, _) in enumerate(SAMPLES):
        inputs, targets = list(all_inputs), list(all_targets)
        marks, start = [mark == "1" for mark in MARKS[i]], EOS
        if not has_start:
            start = (inputs or targets).pop(0)
            marks = marks[1:]
        n_inputs = min(len(inputs), config.max_tokens - len(targets))
        kept = slice(None, n_inputs)
        if config.long_samples == "cut_input_start":
            kept = slice(len(inputs) - n_inputs, None)
        of_input, of_target = marks[: len(inputs)][kept], marks[len(inputs) :]
        if config.loss_on != "marked":
            of_input = [config.loss_on == "all"] * n_inputs
            of_target = [True] * len(targets)
        found[i] = Used(start, inputs[kept], targets, of_input + of_target)
    return found


def expected_loss(
    model: StageOfFamily,
    shape: ModelShape,
    config: DataConfig,
    weighting: LossWeighting,
    rows: Sequence[Sequence[int]],
    *,
    has_start: bool,
) -> float:
    """Of samples that attend to each other within each of the rows."""
    weights, table = model.state_dict(), shape.model_dump()
    losses: dict[int, list[float]] = {}
    samples = used(config, has_start=has_start)
    is_t5 = shape.family == "t5"
    for row in rows:
        if is_t5:
            (i,) = row
            start, inputs, targets, marks = samples[i]
            found = t5_losses(weights, table, inputs, targets, start).tolist()
            marked = marks[len(inputs) :]
            losses[i] = [loss for loss, mark in zip(found, marked, strict=True) if mark]
            continue
        labels = [[*samples[i].inputs, *samples[i].targets] for i in row]
        starts = [samples[i].start for i in row]
        read = [t for start, own in zip(starts, labels, strict=True) for t in [start, *own[:-1]]]
        flat = [token for own in labels for token in own]
        found = gpt_row(weights, table, read, flat).tolist()
        for i, own in zip(row, labels, strict=True):
            of_sample, found = found[: len(own)], found[len(own) :]
            losses[i] = [x for x, mark in zip(of_sample, samples[i].marks, strict=True) if mark]
    if weighting == "token":
        return sum(map(sum, losses.values())) / sum(map(len, losses.values()))
    if weighting == "sample":
        return sum(sum(own) / len(own) for own in losses.values()) / len(losses)
    of_tasks = [[*losses[0], *losses[2]], [*losses[1], *losses[3]]]
    return sum(sum(own) / len(own) for own in of_tasks) / 2


def in_one(
    samples: Sequence[Sample], layout: Layout, shape: ModelShape
) -> tuple[MicroBatch, list[list[int]]]:
    """All samples in one micro-batch, and which of them attend to each other."""
    ids = [s.sample_id for s in samples]
    if layout is Layout.DENSE:
        return DenseRows((tuple(ids),), sum(s.tokens for s in samples)), [ids]
    return laid_out(samples, layout, shape), [[i] for i in ids]


@pytest.mark.parametrize("loss_on", get_args(LossOn))
@pytest.mark.parametrize(
    ("shape", "layout", "has_start"),
    # The oracle of a T5 knows no rows in which samples attend to each other; its decoder always has
    # a start token.
    [
        *((GPT, layout, has_start) for layout in Layout for has_start in (True, False)),
        (T5, Layout.PADDED, True),
        (T5, Layout.PACKED, True),
    ],
)
def test_a_loss_is_the_mean_over_trained_tokens(
    tmp_path: Path, shape: ModelShape, layout: Layout, has_start: bool, loss_on: LossOn
) -> None:
    is_t5 = shape.family == "t5"
    model = model_of(shape)
    cases: list[tuple[str, int, LossWeighting]] = [
        ("cut_input_end", 12, "token"),
        ("cut_input_end", 7, "sample"),
        ("cut_input_start", 7, "task"),
    ]
    path = write_samples(tmp_path / "x.h5", SAMPLES, 31, SPANS, has_start=has_start)
    with DatasetFile(path) as dataset:
        for long_samples, max_tokens, weighting in cases:
            config = config_of(loss_on=loss_on, long_samples=long_samples, max_tokens=max_tokens)
            samples = sampler_of(dataset, config).iteration(0)
            trained = trained_tokens_of(dataset, config, predicts_inputs=not is_t5)
            reader = reader_of(dataset, config)
            loader = TokenLoader(
                reader, dataset.header.start_id or 0, weighting, model.collate, trained=trained
            )
            loader.start_iteration(samples)
            microbatch, rows = in_one(samples, layout, shape)
            found = run_stage(model, None, loader(microbatch)).item()
            expected = expected_loss(model, shape, config, weighting, rows, has_start=has_start)
            assert found == pytest.approx(expected, rel=1e-12), (long_samples, weighting)
