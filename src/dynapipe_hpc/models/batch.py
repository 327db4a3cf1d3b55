"""Batches: micro-batches as tensors, with what attention needs to know of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import Branch, MicroBatch, PackedRow, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import NO_TOKENS, SampleTokens
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens
from dynapipe_hpc.models.attention import Attend, causal_attention
from dynapipe_hpc.models.documents import (
    Branches,
    Documents,
    OnDevice,
    Segments,
    SlicedRow,
    segments_of,
)
from dynapipe_hpc.models.dropout import dropout_keys
from dynapipe_hpc.models.packed_attention import CachedKeys, KeyValueCache, packed_attention, scaled
from dynapipe_hpc.models.rotary import Angles

IntegerArray = npt.NDArray[np.integer[Any]]
TokenReader = Callable[[Sample], SampleTokens]
"""Reader of the tokens of a sample that are used: a dataset in practice."""
NO_SAMPLE = -1


@dataclass(frozen=True, slots=True, eq=False)
class PreferencePairs(OnDevice):
    """Preference pairs of a micro-batch.

    `answers`: Answer that each prediction belongs to, shape (rows, row_tokens): 2k for the chosen
    and 2k + 1 for the rejected one of pair k; 0 at untrained tokens.
    """

    answers: Tensor
    sample_ids: Tensor  # sample of each pair, shape (n_pairs,)
    weights: Tensor  # weight of each pair in the loss, float64, shape (n_pairs,)


@dataclass(frozen=True, slots=True, eq=False)
class Labels(OnDevice):
    """Predictions that a micro-batch asks for. Tensors of shape (rows, row_tokens).

    `weights`: Weight of each prediction in the loss, float64; zero at tokens that are not trained,
    and at padding.
    """

    ids: Tensor
    weights: Tensor
    sample_ids: Tensor  # sample of each prediction; `NO_SAMPLE` at padding
    pairs: PreferencePairs | None = None  # preference pairs; None if the samples are not pairs


@dataclass(frozen=True, slots=True, eq=False)
class Batch(OnDevice):
    """A micro-batch as a stage of a model needs it. Tensors of tokens have the shape `size`.

    `tokens`: What the model reads: every sample one position late, after its start token; on a
    stage that neither embeds nor predicts, `tokens` and `labels` are None. `lengths`: Number
    of positions of each row that are not padding, shape (rows,), if the batch is a `source` and any
    row has padding.
    """

    biases: ClassVar[tuple[()]] = ()  # all that tokens see lies in the row

    size: tuple[int, int]  # numbers of rows and of tokens per row
    segments: Segments | None = None  # documents of a packed row; None for padded rows
    tokens: Tensor | None = None
    labels: Labels | None = None  # None also if the head is to return logits
    keys: Tensor | None = None  # keys for dropout; None without dropout
    source: "Batch | None" = None  # rows that an encoder reads; None without
    lengths: Tensor | None = None
    kv_cache: KeyValueCache | None = None  # keys and values of tokens before a slice
    angles: Angles | None = None  # angles of rotary positions; None if positions are embedded

    @property
    def positions(self) -> Tensor | None:
        """Positions of a packed row's tokens in their documents; None for other rows."""
        return None if self.segments is None else self.segments.positions

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        layer: int = 0,
        scale: float | None = None,
        window: int | None = None,
        attend: Attend | None = None,
    ) -> Tensor:
        """Attention to what tokens see, shaped as `query`: (rows, tokens, heads, head size).

        `layer`: Number of the layer; a cache keeps the keys and values of layers separate.
        `scale`, `window` and `attend`: See `causal_attention`.
        """
        segments = self.segments
        if attend and isinstance(segments, Branches | SlicedRow):
            raise ValueError("attention with soft caps takes neither slices nor preference pairs")
        if isinstance(segments, Branches):
            q, k, v = scaled(query, scale)[0], key[0], value[0]
            documents = {"queries": segments.texts, "keys": segments.sources}
            return packed_attention(q, k, v, **documents, source=segments, window=window)[None]
        if not isinstance(segments, SlicedRow):
            q, k, v = (each.transpose(1, 2) for each in (query, key, value))
            attended = causal_attention(
                q, k, v, segments, scale=scale, window=window, attend=attend
            )
            return attended.transpose(1, 2)
        if self.kv_cache is None:
            raise ValueError("a slice of a sample needs the keys and values of earlier slices")
        n_tokens, first = segments.slice.longest, segments.first_key(window)
        q, k, v = (each[0, :n_tokens] for each in (scaled(query, scale), key, value))
        source = CachedKeys(self.kv_cache.layer(layer), segments.begin, first)
        documents = {"queries": segments.slice, "keys": segments.keys(first)}
        attended = packed_attention(q, k, v, **documents, source=source, window=window)[None]
        if segments.others is None:
            return attended
        behind = Batch(self.size, segments.others)
        rest = (each[:, n_tokens:] for each in (query, key, value))
        return torch.cat([attended, behind.attend(*rest, scale=scale, window=window)], 1)


@dataclass(frozen=True, slots=True)
class IterationTokens:
    """Tokens of the samples of an iteration's global batch, and their weights in the loss.

    `weights`: By sample id, the weight in the loss of each trained token or, for a preference pair,
    of the whole pair. `padding_id`: Token of padding, and the start token of targets.
    `iteration`: Iteration of training, on which dropout depends; None to drop nothing.
    """

    samples: Mapping[int, Sample]
    weights: Mapping[int, float]
    read: TokenReader
    padding_id: int
    trained: TrainedTokens = TARGETS
    iteration: int | None = None

    def loss_weights(self, sample: Sample) -> npt.NDArray[np.float64]:
        """Weight in the loss of every token of a sample, input and target, shape (tokens,)."""
        weights = np.zeros(sample.tokens)
        weights[self.trained.mask(sample)] = self.weights[sample.sample_id]
        return weights

    def texts(self, sample: Sample) -> tuple[IntegerArray, IntegerArray]:
        """Tokens of a sample that a decoder reads, start token first, and tokens that it predicts.

        A rejected answer begins with the last token of the prompt, as the chosen one does.
        """
        inputs, targets, rejected, start = self.read(sample)
        text = np.concatenate([[start], inputs, targets])
        if not sample.is_pair:
            return text[:-1], text[1:]
        last_of_prompt = text[[len(inputs)]]
        return (
            np.concatenate([text[:-1], last_of_prompt, rejected[:-1]]),
            np.concatenate([text[1:], rejected]),
        )


def collate(
    microbatch: MicroBatch, tokens: IterationTokens, *, reads: bool = True, drops: bool = True
) -> Batch:
    """Reads and lays out a micro-batch for a decoder-only model.

    A sample of n tokens takes n positions; samples of a row follow each other without gaps. A slice
    first reads the token before it.

    `reads`: Whether the stage needs tokens. `drops`: Whether the model has dropout.

    Raises `ValueError`: Samples of a packed row do not begin where its offsets and branches say.
    """
    size = (microbatch.n_rows, microbatch.row_tokens)
    segments = segments_of(microbatch) if isinstance(microbatch, PackedRow) else None
    batch = Batch(size, segments)
    if not (reads or drops):
        return batch
    held = {i: tokens_held(microbatch, i, tokens.samples[i].tokens) for i in microbatch.sample_ids}
    if drops:
        batch = replace(batch, keys=dropout_keys(tokens.iteration, microbatch.rows, held, size[1]))
    if not reads:
        return batch
    if isinstance(microbatch, PackedRow):
        n_tokens = {i: len(part) for i, part in held.items()}
        _check_offsets(microbatch.sample_ids, microbatch.offsets, n_tokens)

    def columns_of(sample: Sample) -> Sequence[Any]:
        part = slice(held[sample.sample_id].start, held[sample.sample_id].stop)
        sides = (*tokens.texts(sample), tokens.loss_weights(sample))
        return *(side[part] for side in sides), sample.sample_id

    read, ids, weights, owner_ids = _laid_out(microbatch, tokens, size, columns_of)
    labels = Labels(ids, weights, owner_ids, _pairs(microbatch, tokens))
    return replace(batch, tokens=read, labels=labels)


def collate_both_sides(
    microbatch: MicroBatch,
    tokens: IterationTokens,
    *,
    inputs: bool = True,
    targets: bool = True,
    drops: bool = True,
) -> Batch:
    """Reads and lays out a micro-batch for a model whose encoder reads inputs; see `collate`.

    A side that is not read is laid out as padding, and so is the place of an input without tokens
    in a packed row.
    """
    samples = [tokens.samples[i] for i in microbatch.sample_ids]
    is_packed = isinstance(microbatch, PackedRow)
    # A document needs a position, for its target to attend to.
    n_inputs = {s.sample_id: max(s.input_tokens, int(is_packed)) for s in samples}
    n_targets = {s.sample_id: s.target_tokens for s in samples}
    segments = source_segments = None
    if isinstance(microbatch, PackedRow):
        sample_ids = microbatch.sample_ids
        _check_offsets(sample_ids, microbatch.offsets, n_inputs, "input tokens")
        _check_offsets(sample_ids, microbatch.target_offsets, n_targets, "target tokens")
        source_segments = Documents.between(microbatch.offsets, microbatch.row_tokens)
        segments = Documents.between(microbatch.target_offsets, microbatch.target_tokens)
    texts = {s.sample_id: tokens.read(s) for s in samples}

    def padded(text: IntegerArray, n_tokens: int) -> IntegerArray:
        n_missing = n_tokens - len(text)
        return np.concatenate([text, [tokens.padding_id] * n_missing]) if n_missing else text

    def inputs_of(sample: Sample) -> Sequence[Any]:
        text = texts[sample.sample_id].inputs if inputs else NO_TOKENS
        return [padded(text, n_inputs[sample.sample_id])]

    def targets_of(sample: Sample) -> Sequence[Any]:
        text = texts[sample.sample_id].targets if targets else NO_TOKENS
        labels = padded(text, sample.target_tokens)
        before = np.concatenate([[tokens.padding_id], labels[:-1]])
        weights = tokens.loss_weights(sample)[sample.input_tokens :]
        return before, labels, weights, sample.sample_id

    size = (microbatch.n_rows, microbatch.row_tokens)
    target_size = (microbatch.n_rows, microbatch.target_tokens)
    keys = source_keys = None
    if drops:
        held, source_held = (
            {i: range(n) for i, n in each.items()} for each in (n_targets, n_inputs)
        )
        keys = dropout_keys(tokens.iteration, microbatch.rows, held, target_size[1])
        source_keys = dropout_keys(tokens.iteration, microbatch.rows, source_held, size[1])
    (read,) = _laid_out(microbatch, tokens, size, inputs_of)
    # At least one position, so that there is something to attend to.
    lengths = np.array(
        [max(1, sum(tokens.samples[i].input_tokens for i in row)) for row in microbatch.rows]
    )
    has_padding = bool((lengths < microbatch.row_tokens).any())
    source = Batch(
        size,
        source_segments,
        read,
        keys=source_keys,
        lengths=torch.from_numpy(lengths) if has_padding else None,
    )
    before, ids, weights, owner_ids = _laid_out(microbatch, tokens, target_size, targets_of)
    return Batch(target_size, segments, before, Labels(ids, weights, owner_ids), keys, source)


def _laid_out(
    microbatch: MicroBatch,
    tokens: IterationTokens,
    size: tuple[int, int],
    columns_of: Callable[[Sample], Sequence[Any]],
) -> list[Tensor]:
    """Tokens, labels, weights and sample ids of samples, laid end to end in rows."""
    fills = (tokens.padding_id, tokens.padding_id, 0.0, NO_SAMPLE)
    arrays: list[npt.NDArray[Any]] = [np.full(size, fill) for fill in fills]
    n_columns = 0
    for row, sample_ids in enumerate(microbatch.rows):
        start = 0
        for columns in (columns_of(tokens.samples[i]) for i in sample_ids):
            end, n_columns = start + len(columns[0]), len(columns)
            for array, column in zip(arrays, columns, strict=False):
                array[row, start:end] = column
            start = end
    return [torch.from_numpy(array) for array in arrays[:n_columns]]


def _check_offsets(
    sample_ids: Sequence[int],
    offsets: Sequence[int],
    n_tokens: Mapping[int, int],
    kind: str = "tokens",
) -> None:
    """Checks a row, which may repeat a sample, as in profiles."""
    for sample_id, (start, end) in zip(sample_ids, pairwise(offsets), strict=True):
        if n_tokens[sample_id] != end - start:
            raise ValueError(
                f"sample {sample_id} has {n_tokens[sample_id]} {kind}, but lies from {start} to "
                f"{end} in a packed row; the plan was made for other samples"
            )


def _pairs(microbatch: MicroBatch, tokens: IterationTokens) -> PreferencePairs | None:
    """The preference pairs of a micro-batch, whose branches are checked; None if it has none."""
    samples = [tokens.samples[i] for i in microbatch.sample_ids]
    branches = microbatch.branches if isinstance(microbatch, PackedRow) else ()
    if not branches and not any(sample.is_pair for sample in samples):
        return None
    if not isinstance(microbatch, PackedRow) or len(branches) != len(samples):
        raise ValueError("preference pairs are in a micro-batch that is no packed row of pairs")
    answers = np.zeros((1, microbatch.row_tokens), np.int64)
    places = zip(samples, branches, pairwise(microbatch.offsets), strict=True)
    for k, (sample, branch, (begin, end)) in enumerate(places):
        prompt_end = begin + sample.input_tokens
        if branch != Branch(prompt_end + sample.target_tokens, sample.input_tokens):
            raise ValueError(
                f"sample {sample.sample_id} has {sample.describe()}, but its rejected answer "
                f"begins at {branch.begin}, after a prompt of {branch.prompt_tokens} tokens; the "
                f"sample begins at {begin} in its packed row; the plan was made for other samples"
            )
        answers[0, prompt_end : branch.begin] = 2 * k
        answers[0, branch.begin : end] = 2 * k + 1
    weights = np.array([tokens.weights[i] for i in microbatch.sample_ids])
    ids = np.array(microbatch.sample_ids, np.int64)
    return PreferencePairs(*(torch.from_numpy(array) for array in (answers, ids, weights)))
