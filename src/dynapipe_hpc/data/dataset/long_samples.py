"""Truncation: what becomes of samples that are longer than data.max_tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.token_block import TokenArray
from dynapipe_hpc.data.trained_tokens import TARGETS, AllTokens, MarkedTokens, TrainedTokens

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset

Integers = npt.NDArray[np.integer]
Tokens = npt.NDArray[np.int64]


class UsedTokens(NamedTuple):
    """The samples and tokens of a dataset that training uses.

    Attributes:
        kept: Ids of the samples that are not left out, ascending, shape (n_kept,).
        inputs: Number of input tokens used of every sample, shape (n_samples,).
        targets: Number of target tokens used of every sample, shape (n_samples,).
    """

    kept: Tokens
    inputs: Tokens
    targets: Tokens

    @property
    def lengths(self) -> Tokens:
        """Number of tokens used of every sample, shape (n_samples,)."""
        return self.inputs + self.targets


def used_of(dataset: Dataset, config: DataConfig) -> UsedTokens:
    """The samples and tokens used of a dataset, or of all datasets of a mixture.

    Raises:
        InputError: As for `used_tokens`, for any of the datasets.
    """
    kept, inputs, targets, n_before = [], [], [], 0
    for file, path in zip(dataset.files, config.paths, strict=True):
        used = used_tokens(file.input_lengths, file.target_lengths, config.alone(path))
        kept.append(used.kept + n_before)
        inputs.append(used.inputs)
        targets.append(used.targets)
        n_before += file.n_samples
    return UsedTokens(*(np.concatenate(each) for each in (kept, inputs, targets)))


def used_tokens(
    input_lengths: Integers, target_lengths: Integers, config: DataConfig
) -> UsedTokens:
    """The tokens used of all samples; see `DataConfig.long_samples`.

    Raises:
        InputError: There are no samples, none is short enough, or a long one is refused.
    """
    _check(input_lengths + target_lengths, config)
    targets: Tokens = np.minimum(target_lengths, config.max_tokens).astype(np.int64)
    inputs: Tokens = np.minimum(input_lengths, config.max_tokens - targets).astype(np.int64)
    match config.long_samples:
        case "drop":
            fits = input_lengths + target_lengths <= config.max_tokens
        case "cut_targets":
            fits = np.ones(len(targets), np.bool_)
        case _:
            fits = target_lengths <= config.max_tokens
    if not fits.any():
        raise InputError(
            f"data.max_tokens = {config.max_tokens}: all {len(fits):,} samples of "
            f"'{config.dataset}' are longer; raise it, or change data.long_samples"
        )
    return UsedTokens(np.flatnonzero(fits), inputs, targets)


def _check(lengths: Integers, config: DataConfig) -> None:
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


def are_long(dataset: Dataset, config: DataConfig) -> npt.NDArray[np.bool_]:
    """Whether each sample is longer than data.max_tokens, shape (n_samples,)."""
    is_long: npt.NDArray[np.bool_] = (
        dataset.input_lengths + dataset.target_lengths > config.max_tokens
    )
    return is_long


def describe_long(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """Yields a line about the samples above data.max_tokens of each dataset that has some.

    Raises:
        InputError: As for `used_tokens`.
    """
    names = [f"{entry.name}: " for entry in config.mixture or ()] or [""]
    for name, file, path in zip(names, dataset.files, config.paths, strict=True):
        yield from (name + line for line in _describe_long(file, config.alone(path)))


def _describe_long(dataset: DatasetFile, config: DataConfig) -> Iterator[str]:
    inputs, targets = dataset.input_lengths, dataset.target_lengths
    used = used_tokens(inputs, targets, config)
    is_long = are_long(dataset, config)
    if not is_long.any():
        return
    kept = np.zeros(len(inputs), np.bool_)
    kept[used.kept] = True
    end = "start" if config.long_samples == "cut_input_start" else "end"
    left_out = "are left out"
    if config.long_samples != "drop":
        left_out += " because their target alone is longer"
    counts = {
        f"lose the {end} of their input": kept & (used.inputs < inputs),
        "lose the end of their target": kept & (used.targets < targets),
        left_out: ~kept,
    }
    shown = ", ".join(f"{n.sum():,} {what}" for what, n in counts.items() if n.any())
    n_used = (used.inputs + used.targets)[used.kept].sum()
    yield (
        f"{is_long.sum():,} of {len(inputs):,} samples are longer than data.max_tokens "
        f"({config.max_tokens:,}): {shown} (data.long_samples = '{config.long_samples}'); "
        f"{(inputs + targets).sum() - n_used:,} of {(inputs + targets).sum():,} tokens are not used"
    )


class InputEnds:
    """A reader of the last tokens of inputs, where a dataset reads the first."""

    def __init__(self, dataset: Dataset) -> None:
        """Reads from `dataset`."""
        self._dataset = dataset
        self._lengths = dataset.input_lengths

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[TokenArray, TokenArray]:
        """Reads tokens as `DatasetFile.read`, but the last ones of the input."""
        length = int(self._lengths[sample_id]) if input_tokens else 0
        inputs, targets = self._dataset.read(sample_id, length, target_tokens)
        return inputs[length - input_tokens :], targets

    def first_token(self, sample_id: int) -> int:
        """The first token of the uncut sample."""
        return self._dataset.first_token(sample_id)


def trained_tokens_of(
    dataset: Dataset, config: DataConfig, *, predicts_inputs: bool
) -> TrainedTokens:
    """The tokens of a dataset that count in the loss; see `DataConfig.loss_on`.

    Args:
        dataset: The dataset.
        config: Choice of tokens, and of the end that long inputs lose.
        predicts_inputs: Whether the model predicts tokens of inputs, as decoder-only models do.
    """
    match config.loss_on:
        case "all" if predicts_inputs:
            return AllTokens()
        case "marked" if len(dataset.spans.starts):
            keeps_end = config.long_samples == "cut_input_start"
            spans = dataset.predicted_spans
            return MarkedTokens(spans, dataset.input_lengths, keeps_end, predicts_inputs)
        case _:
            return TARGETS


def reader_of(dataset: Dataset, config: DataConfig) -> Dataset | InputEnds:
    """The reader of the tokens that training uses."""
    return InputEnds(dataset) if config.long_samples == "cut_input_start" else dataset
