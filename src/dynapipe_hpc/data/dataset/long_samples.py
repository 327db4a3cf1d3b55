"""Truncation: what becomes of samples that are longer than data.max_tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import SampleTokens
from dynapipe_hpc.data.trained_tokens import TARGETS, AllTokens, MarkedTokens, Spans, TrainedTokens

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import Dataset, DatasetFile

OPENING_TOKENS = 16
"""Number of last tokens of a prompt that cutting keeps: they open the turn of the answers."""
Integers = npt.NDArray[np.integer]
Tokens = npt.NDArray[np.int64]


class UsedTokens(NamedTuple):
    """The samples and tokens of a dataset that training uses.

    `rejected`: Number of used tokens of every rejected answer, shape (n_samples,); 0 where samples
    are not preference pairs.
    """

    kept: Tokens  # ids of the samples that are not left out, ascending, shape (n_kept,)
    inputs: Tokens  # number of input tokens used of every sample, shape (n_samples,)
    targets: Tokens  # number of target tokens used of every sample, shape (n_samples,)
    rejected: Tokens

    @property
    def lengths(self) -> Tokens:
        """Number of used tokens of every sample, shape (n_samples,)."""
        return self.inputs + self.targets + self.rejected

    def samples(self, ids: Tokens, task_ids: Integers) -> list[Sample]:
        """Samples by their ids; `task_ids` has the task ids of all samples, shape (n_samples,)."""
        columns = (self.inputs, self.targets, task_ids, self.rejected)
        return list(map(Sample, ids.tolist(), *(column[ids].tolist() for column in columns)))


def used_of(dataset: Dataset, config: DataConfig) -> UsedTokens:
    parts, n_before = [], 0
    for file, path in zip(dataset.files, config.paths, strict=True):
        used = used_tokens(
            file.input_lengths,
            file.target_lengths,
            config.alone(path),
            file.predicted_spans,
            rejected_lengths=file.rejected_lengths,
        )
        parts.append(used._replace(kept=used.kept + n_before))
        n_before += file.n_samples
    return UsedTokens(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def used_tokens(
    input_lengths: Integers,
    target_lengths: Integers,
    config: DataConfig,
    spans: Spans | None = None,
    *,
    rejected_lengths: Integers | None = None,
) -> UsedTokens:
    """The used tokens of all samples; see `DataConfig.long_samples`.

    A preference pair is cut or left out as a unit. The last `OPENING_TOKENS` of its prompt are
    kept, or a quarter of data.max_tokens if that is less. Where targets are cut, the longer answer
    is cut first, down to the length of the shorter one.

    Lengths have the shape (n_samples,). `spans`: Spans of trained tokens, the turns of
    conversations.
    """
    if rejected_lengths is None:
        rejected_lengths = np.zeros_like(target_lengths)
    lengths = input_lengths + target_lengths + rejected_lengths
    if len(lengths) == 0:
        raise InputError(f"{config.dataset}: holds no samples")
    too_long = np.flatnonzero(lengths > config.max_tokens)
    if config.long_samples == "refuse" and too_long.size:
        first = too_long[0]
        raise InputError(
            f"data.max_tokens = {config.max_tokens}: {too_long.size:,} of {len(lengths):,} samples "
            f"of '{config.dataset}' are longer, the first is sample {first} of {lengths[first]:,} "
            "tokens; raise it, or choose with data.long_samples what to do with them"
        )
    opening = np.minimum(input_lengths, min(OPENING_TOKENS, config.max_tokens // 4))
    opening = np.where(rejected_lengths > 0, opening, 0)
    room_of_answers = config.max_tokens - opening
    targets, rejected = _cut_answers(target_lengths, rejected_lengths, room_of_answers)
    answers = targets + rejected
    room = np.maximum(config.max_tokens - answers, 0)
    inputs: Tokens = np.minimum(input_lengths, room).astype(np.int64)
    if config.long_samples == "cut_input" and spans is not None:
        n_kept = inputs_after_turns(inputs, input_lengths, spans)
        inputs = np.where((inputs < input_lengths) & (n_kept > 0), n_kept, inputs)
    match config.long_samples:
        case "drop":
            fits = lengths <= config.max_tokens
        case "cut_targets":
            fits = answers <= config.max_tokens  # false where two answers share one token
        case _:
            fits = target_lengths + rejected_lengths <= room_of_answers
    if not fits.any():
        raise InputError(
            f"data.max_tokens = {config.max_tokens}: all {len(fits):,} samples of "
            f"'{config.dataset}' are longer; raise it, or change data.long_samples"
        )
    return UsedTokens(np.flatnonzero(fits), inputs, targets, rejected)


def _cut_answers(
    targets: Integers, rejected: Integers, max_tokens: Integers
) -> tuple[Tokens, Tokens]:
    half = np.maximum(max_tokens // 2, 1)
    of_targets = np.minimum(targets, np.maximum(max_tokens - np.minimum(rejected, half), 1))
    of_rejected = np.minimum(rejected, np.maximum(max_tokens - of_targets, np.minimum(rejected, 1)))
    return of_targets.astype(np.int64), of_rejected.astype(np.int64)


def inputs_after_turns(room: Tokens, input_lengths: Integers, spans: Spans) -> Tokens:
    """Length of the longest tail of each input that fits and begins right after a turn, or 0.

    `room`: Maximum number of input tokens that fit, shape (n_samples,). `input_lengths`: Number of
    input tokens of every sample, shape (n_samples,).
    """
    owners = np.repeat(np.arange(len(room)), spans.lengths)
    after_turn = input_lengths[owners] - spans.ends  # negative after the last, which is the target
    fits = after_turn <= room[owners]
    kept: Tokens = np.zeros_like(room)
    np.maximum.at(kept, owners[fits], after_turn[fits])
    return kept


def are_long(dataset: Dataset, config: DataConfig) -> npt.NDArray[np.bool_]:
    """Whether each sample is longer than data.max_tokens, shape (n_samples,)."""
    answers = dataset.target_lengths + dataset.rejected_lengths
    is_long: npt.NDArray[np.bool_] = dataset.input_lengths + answers > config.max_tokens
    return is_long


def trained_tokens_of(
    dataset: Dataset, config: DataConfig, *, predicts_inputs: bool
) -> TrainedTokens:
    """The tokens of a dataset that count in the loss; see `DataConfig.loss_on`.

    `predicts_inputs`: Whether the model predicts tokens of inputs, as decoder-only models do.
    """
    match config.loss_on:
        case "all" if predicts_inputs:
            return AllTokens()
        case "marked" if len(dataset.spans.starts):
            keeps_end = config.long_samples in ("cut_input", "cut_input_start")
            spans = dataset.predicted_spans
            return MarkedTokens(spans, dataset.input_lengths, keeps_end, predicts_inputs)
        case _:
            return TARGETS


def keeps_input_end(dataset: Dataset, config: DataConfig) -> npt.NDArray[np.bool_]:
    """Whether the input of each sample loses its start rather than its end, shape (n_samples,)."""
    is_pair = dataset.rejected_lengths > 0  # answers follow from the end of a prompt
    is_conversation: npt.NDArray[np.bool_] = (dataset.spans.lengths > 0) | is_pair
    match config.long_samples:
        case "cut_input":
            return is_conversation
        case "cut_targets":
            return is_pair
        case "cut_input_start":
            return np.ones_like(is_conversation)
        case _:
            return np.zeros_like(is_conversation)


def reader_of(dataset: Dataset, config: DataConfig) -> Callable[[Sample], SampleTokens]:
    """The reader of the tokens that training uses."""
    keeps_end = keeps_input_end(dataset, config)
    if not keeps_end.any():
        return dataset.read
    return lambda sample: dataset.read(sample, keeps_end=bool(keeps_end[sample.sample_id]))


def describe_long(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """Yields a line about the samples above data.max_tokens of each dataset that has some."""
    names = [f"{entry.name}: " for entry in config.mixture or ()] or [""]
    for name, file, path in zip(names, dataset.files, config.paths, strict=True):
        yield from (name + line for line in _describe_long(file, config.alone(path)))


def _describe_long(dataset: DatasetFile, config: DataConfig) -> Iterator[str]:
    inputs, targets = dataset.input_lengths, dataset.target_lengths
    used = used_of(dataset, config)
    is_long = are_long(dataset, config)
    if not is_long.any():
        return
    kept = np.zeros(len(inputs), np.bool_)
    kept[used.kept] = True
    is_cut = kept & (used.inputs < inputs)
    is_answer_cut = (used.targets < targets) | (used.rejected < dataset.rejected_lengths)
    keeps_end = keeps_input_end(dataset, config)
    turns = inputs_after_turns(used.inputs, inputs, dataset.predicted_spans)
    loses_turns = keeps_end & (used.inputs == turns) & (dataset.spans.lengths > 0)
    left_out = "are left out"
    if config.long_samples != "drop":
        of_pairs = "their answers and the end of their prompt are"
        left_out += (
            f" because {of_pairs if dataset.header.has_pairs else 'their target alone is'} longer"
        )
    counts = {
        "lose their first turns": is_cut & loses_turns,
        "lose the start of their input": is_cut & keeps_end & ~loses_turns,
        "lose the end of their input": is_cut & ~keeps_end,
        "lose the end of their target": kept & is_answer_cut,
        left_out: ~kept,
    }
    shown = ", ".join(f"{n.sum():,} {what}" for what, n in counts.items() if n.any())
    n_used, n_all = used.lengths[used.kept].sum(), dataset.n_tokens
    yield (
        f"{is_long.sum():,} of {len(inputs):,} samples are longer than data.max_tokens "
        f"({config.max_tokens:,}): {shown} (data.long_samples = '{config.long_samples}'); "
        f"{n_all - n_used:,} of {n_all:,} tokens are not used"
    )
