"""Samples of a dataset as text, with what is trained told apart from what is only read."""

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.text.tokenizer_files import TokenizerFiles
from dynapipe_hpc.data.token_block import TokenArray, TokenBlock

SAMPLES_AT_A_TIME = 64
_BYTES = "bytes"


def show_samples(path: Path, n_samples: int, tokenizer: TokenizerFiles | None) -> str:
    """The first samples of a dataset: a line for each stretch of tokens, trained or only read.

    Text is shown with its line ends and other unprintable characters escaped, or as token ids if
    there is no tokenizer. Datasets of bytes need none.

    Raises:
        InputError: The file is not a dataset, or its tokens are those of another tokenizer.
    """
    with DatasetFile(path) as dataset:
        _check_tokenizer(dataset, tokenizer)
        samples = islice(_samples(dataset), n_samples)
        return "\n".join(
            line
            for number, (tokens, is_trained, task) in enumerate(samples)
            for line in _lines(
                number, tokens, is_trained, task=task, dataset=dataset, tokenizer=tokenizer
            )
        )


def _lines(
    number: int,
    tokens: TokenArray,
    is_trained: np.ndarray,
    *,
    task: str,
    dataset: DatasetFile,
    tokenizer: TokenizerFiles | None,
) -> Iterator[str]:
    counts = f"{len(tokens):,} tokens, {is_trained.sum():,} of them trained"
    yield f"sample {number:,} of task {escaped(task, keep='')}: {counts}"
    for trained, group in groupby(zip(is_trained.tolist(), tokens.tolist(), strict=True), _first):
        text = _text([token for _, token in group], dataset, tokenizer)
        yield f"  {'trained' if trained else 'read   '}  {escaped(text, keep='')}"


def _first(pair: tuple[bool, int]) -> bool:
    return pair[0]


def _samples(dataset: DatasetFile) -> Iterator[tuple[TokenArray, np.ndarray, str]]:
    """Tokens of every sample, which of them are trained, and its task."""
    for part in dataset.parts:
        for block in dataset.blocks(part, SAMPLES_AT_A_TIME):
            yield from _samples_of(block, starts_itself=dataset.start_id is None)


def _samples_of(
    block: TokenBlock, *, starts_itself: bool
) -> Iterator[tuple[TokenArray, np.ndarray, str]]:
    inputs, targets = (
        np.split(side.tokens, np.cumsum(side.lengths)[:-1])
        for side in (block.inputs, block.targets)
    )
    for i, task in enumerate(block.tasks):
        tokens = np.concatenate([inputs[i], targets[i]])
        is_trained = np.zeros(len(tokens), np.bool_)
        for start, end in block.spans.of_sample(i) or [(len(inputs[i]), len(tokens))]:
            is_trained[start:end] = True
        if starts_itself:  # nothing predicts the first token
            is_trained[0] = False
        yield tokens, is_trained, task


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
