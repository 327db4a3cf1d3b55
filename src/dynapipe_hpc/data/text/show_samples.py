"""Samples of a dataset as text, with what is trained told apart from what is only read."""

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.text.tokenizer_files import TokenizerFiles
from dynapipe_hpc.data.token_block import TokenArray

_BYTES = "bytes"
_USES = ("read", "trained", "chosen", "rejected")
"""Uses of tokens: they are only read, or trained, those of a preference pair as either answer."""
_READ, _TRAINED, _CHOSEN, _REJECTED = range(len(_USES))


def show_samples(path: Path, n_samples: int, tokenizer: TokenizerFiles | None) -> str:
    """The first samples of a dataset: a line for each stretch of tokens, trained or only read.

    Of preference pairs, the chosen and the rejected answer have lines of their own.

    Text is shown with its line ends and other unprintable characters escaped, or as token ids if
    there is no tokenizer. Datasets of bytes need none.
    """
    with DatasetFile(path) as dataset:
        _check_tokenizer(dataset, tokenizer)
        samples = islice(_samples(dataset), n_samples)
        return "\n".join(
            line
            for number, sample in enumerate(samples)
            for line in _lines(number, sample, dataset, tokenizer)
        )


class _Shown(NamedTuple):
    """A sample to show: its tokens, what becomes of each (by index in `_USES`), and its task."""

    tokens: TokenArray
    uses: npt.NDArray[np.int64]
    task: str


def _lines(
    number: int, sample: _Shown, dataset: DatasetFile, tokenizer: TokenizerFiles | None
) -> Iterator[str]:
    tokens, uses, task = sample
    counts = f"{len(tokens):,} tokens, {np.count_nonzero(uses):,} of them trained"
    yield f"sample {number:,} of task {escaped(task, keep='')}: {counts}"
    width = max(len(_USES[use]) for use in set(uses.tolist()) | {_TRAINED})
    for use, group in groupby(zip(uses.tolist(), tokens.tolist(), strict=True), _first):
        text = _text([token for _, token in group], dataset, tokenizer)
        yield f"  {_USES[use]:{width}}  {escaped(text, keep='')}"


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _samples(dataset: DatasetFile) -> Iterator[_Shown]:
    starts_itself = dataset.start_id is None
    for i, task_id in enumerate(dataset.task_ids.tolist()):
        parts = dataset.parts(i)
        inputs, targets, *rejected = map(len, parts)
        uses = np.full(sum(map(len, parts)), _READ)
        for start, end in dataset.spans.of_sample(i) or [(inputs, inputs + targets)]:
            uses[start:end] = _TRAINED
        if starts_itself:  # nothing predicts the first token
            uses[0] = _READ
        if rejected:
            uses[uses == _TRAINED] = _CHOSEN
            uses[inputs + targets :] = _REJECTED
        yield _Shown(np.concatenate(parts), uses, dataset.task_names[task_id])


def _text(tokens: list[int], dataset: DatasetFile, tokenizer: TokenizerFiles | None) -> str:
    if tokenizer is not None:
        return tokenizer.model.decode(tokens, skip_special_tokens=False)
    if dataset.header.tokenizer_name == _BYTES:
        text = bytes(token for token in tokens if token != dataset.eos_id)
        return text.decode(errors="replace") + "<end>" * tokens.count(dataset.eos_id)
    return " ".join(map(str, tokens))


def _check_tokenizer(dataset: DatasetFile, tokenizer: TokenizerFiles | None) -> None:
    made_by = dataset.header
    if tokenizer is not None and tokenizer.sha256 != made_by.tokenizer_sha256:
        raise InputError(
            f"{dataset.path}: its tokens are those of {made_by.tokenizer_name} with sha256 "
            f"{made_by.tokenizer_sha256[:12]}, but {tokenizer.name} has {tokenizer.sha256[:12]}; "
            "name that tokenizer, or none to see token ids"
        )
