"""A dataset as text: its summary, and samples with trained and read tokens apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError, escaped

if TYPE_CHECKING:  # a library that the summary does without
    from dynapipe_hpc.data.text.tokenizer_files import TokenizerFiles

_BYTES = "bytes"
_READ, _TRAINED, _CHOSEN, _REJECTED = "read", "trained", "chosen", "rejected"
"""Uses of tokens: only read, or trained; in a preference pair, trained as either answer."""


def show_samples(path: Path, n_samples: int, tokenizer: TokenizerFiles | None) -> str:
    """The first samples of a dataset: a line for each stretch of tokens, trained or only read.

    In preference pairs, the chosen and the rejected answer have lines of their own.

    Text is shown with its line ends and other unprintable characters escaped, or as token ids if
    there is no tokenizer. Datasets of bytes need none.
    """
    with DatasetFile(path) as dataset:
        _check_tokenizer(dataset, tokenizer)
        return "\n".join(
            line
            for sample_id in range(min(n_samples, dataset.n_samples))
            for line in _lines(sample_id, dataset, tokenizer)
        )


def _lines(sample_id: int, dataset: DatasetFile, tokenizer: TokenizerFiles | None) -> Iterator[str]:
    inputs, targets, *rejected = map(len, dataset.parts(sample_id))
    answer = _CHOSEN if rejected else _TRAINED
    uses = [_READ] * (inputs + targets)
    for start, end in dataset.spans.of_sample(sample_id) or [(inputs, inputs + targets)]:
        uses[start:end] = [answer] * (end - start)
    if dataset.header.start_id is None:  # nothing predicts the first token
        uses[0] = _READ
    uses += [_REJECTED] * sum(rejected)
    task = escaped(dataset.header.task_names[dataset.task_ids[sample_id]], keep="")
    counts = f"{len(uses):,} tokens, {len(uses) - uses.count(_READ):,} of them trained"
    yield f"sample {sample_id:,} of task {task}: {counts}"
    width = max(map(len, {*uses, _TRAINED}))
    tokens = (token for part in dataset.parts(sample_id) for token in part.tolist())
    for use, group in groupby(zip(uses, tokens, strict=True), itemgetter(0)):
        text = _text([token for _, token in group], dataset, tokenizer)
        yield f"  {use:{width}}  {escaped(text, keep='')}"


def _text(tokens: list[int], dataset: DatasetFile, tokenizer: TokenizerFiles | None) -> str:
    if tokenizer and tokenizer.model:
        return tokenizer.model.decode(tokens, skip_special_tokens=False)
    if dataset.header.tokenizer_name == _BYTES:
        text = bytes(token for token in tokens if token != dataset.header.eos_id)
        return text.decode(errors="replace") + "<end>" * tokens.count(dataset.header.eos_id)
    return " ".join(map(str, tokens))


def _check_tokenizer(dataset: DatasetFile, tokenizer: TokenizerFiles | None) -> None:
    made_by = dataset.header
    if tokenizer is not None and tokenizer.sha256 != made_by.tokenizer_sha256:
        raise InputError(
            f"{dataset.path}: its tokens are those of {made_by.tokenizer_name} with sha256 "
            f"{made_by.tokenizer_sha256[:12]}, but {tokenizer.name} has {tokenizer.sha256[:12]}; "
            "name the tokenizer of the dataset, or leave --tokenizer out to see token ids"
        )


PERCENTILES = (50, 90, 99, 100)
BAR_WIDTH = 50
Lengths = npt.NDArray[np.int64]


def describe_dataset(path: Path) -> str:
    """Counts, length percentiles per task and a histogram of lengths, in tokens.

    A length counts input and target together; in a preference pair, the prompt and both answers.
    """
    with DatasetFile(path) as dataset:
        lengths = sum(_stored(dataset).values(), np.zeros(dataset.n_samples, np.int64))
        if not len(lengths):
            return "\n".join(_summary(dataset))
        return "\n".join(
            [*_summary(dataset), "", *_table(dataset, lengths), "", *_histogram(lengths)]
        )


def _summary(dataset: DatasetFile) -> Iterator[str]:
    header = dataset.header
    named = (header.tokenizer_name, header.tokenizer_sha256[:12], header.created)
    tokenizer, sha256, created = (escaped(text, keep="") for text in named)
    counts = {name: int(of_samples.sum()) for name, of_samples in _stored(dataset).items()}
    what = "pairs  " if dataset.header.has_pairs else "samples"
    yield f"{dataset.path}: dataset of {created}"
    yield f"{what}    {dataset.n_samples:,} of {len(dataset.header.task_names):,} tasks"
    sides = ", ".join(f"{n:,} of {name}" for name, n in counts.items())
    yield f"tokens     {sum(counts.values()):,} ({sides})"
    special = ", text made special tokens" if header.special_tokens else ""
    yield f"tokenizer  {tokenizer}, sha256 {sha256}{special}"
    start = "no start token" if header.start_id is None else f"start {header.start_id}"
    turn_ends = f", of turns {', '.join(map(str, ids))}" if (ids := header.turn_end_ids) else ""
    end = f"end of sequence {header.eos_id}{turn_ends}"
    yield f"vocabulary {header.vocab_size:,} tokens, {end}, {start}"
    if header.turns:
        yield f"turns      {escaped(header.turns, keep='')} (preprocess --turns)"
    yield f"sources    {', '.join(escaped(source, keep='') for source in header.sources)}"


def _stored(dataset: DatasetFile) -> dict[str, Lengths]:
    of_pairs = ("prompts", "chosen answers", "rejected answers")
    names = of_pairs if dataset.header.has_pairs else ("inputs", "targets")
    return dict(zip(names, dataset.lengths.T, strict=True))


def _table(dataset: DatasetFile, lengths: Lengths) -> Iterator[str]:
    names = [escaped(name, keep="") for name in dataset.header.task_names]
    width = max(len("all tasks"), *map(len, names))
    heads = (f"p{p}" if p < 100 else "longest" for p in PERCENTILES)
    yield f"{'task':{width}} {'samples':>12} {'tokens':>15} " + " ".join(f"{h:>8}" for h in heads)
    yield _row("all tasks", width, lengths)
    used = set(np.unique(dataset.task_ids).tolist())
    for task_id in filter(used.__contains__, np.argsort(dataset.header.task_names).tolist()):
        yield _row(names[task_id], width, lengths[dataset.task_ids == task_id])


def _row(name: str, width: int, lengths: Lengths) -> str:
    # Every percentile is the length of some sample, not interpolated.
    percentiles = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    cells = " ".join(f"{p:8,.0f}" for p in percentiles)
    return f"{name:{width}} {len(lengths):12,} {lengths.sum():15,} {cells}"


def _histogram(lengths: Lengths) -> Iterator[str]:
    """Histogram of lengths; each class is twice as wide as the one before."""
    classes = np.log2(lengths).astype(int)
    counts = np.bincount(classes)
    yield f"{'tokens':>17} {'samples':>12}"
    for k in range(classes.min(), len(counts)):
        bar = "#" * round(BAR_WIDTH * counts[k] / counts.max())
        yield f"{2**k:>8,}-{2 ** (k + 1) - 1:<8,} {counts[k]:>12,} {bar}".rstrip()
