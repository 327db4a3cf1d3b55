"""Attention to a cache and along branches, against that of whole samples."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from tests.examples.training_case import LLAMA_SHAPE, SHAPE, T5_SHAPE, name_of
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import PackedRow, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.documents import Documents, SlicedRow, segments_of
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.packed_attention import KeyValueCache, LayerCache
from dynapipe_hpc.models.sharding.sharded_linear import residual_stream
from dynapipe_hpc.models.sharding.shards import ONE_SHARD
from dynapipe_hpc.models.t5 import (
    AttentionMasks,
    BothMasks,
    DecoderLayer,
    EncoderLayer,
    RelativeBias,
)
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.training.generate import logits_of

HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 8


def drawn(n_tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values, and gradients of the attended values."""
    stream = torch.manual_seed(1)
    return [
        torch.randn(n_tokens, heads, HEAD_SIZE, dtype=torch.float64, generator=stream).to(dtype)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    ]


def whole(inputs: Sequence[Tensor], towards: Tensor, window: int | None = None) -> list[Tensor]:
    """Mixed values and gradients of the whole sample."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    query, key, value = (each.transpose(0, 1)[None] for each in leaves)
    attended = causal_attention(query, key, value, window=window)[0].transpose(0, 1)
    return [attended.detach(), *torch.autograd.grad(attended, leaves, towards)]


def sliced(
    inputs: Sequence[Tensor], towards: Tensor, bounds: Sequence[int], window: int | None = None
) -> list[Tensor]:
    """The same slice by slice: forward in ascending, backward in descending order."""
    cache = KeyValueCache(bounds[-1])
    passes = []
    for begin, end in pairwise(bounds):
        leaves = [each[begin:end].clone().requires_grad_() for each in inputs]
        row = SlicedRow.from_documents(Documents.from_lengths([end - begin]), begin)
        batch = Batch((1, end - begin), row, kv_cache=cache)
        attended = batch.attend(*(each[None] for each in leaves), window=window)[0]
        passes.append((leaves, attended))
    gradients = [
        torch.autograd.grad(attended, leaves, towards[begin:end])
        for (leaves, attended), (begin, end) in reversed(
            list(zip(passes, pairwise(bounds), strict=True))
        )
    ]
    assert len(cache.tensors) == 2  # the sums of gradients are gone
    mixed_values = torch.cat([attended.detach() for _, attended in passes])
    return [mixed_values, *(torch.cat(each[::-1]) for each in zip(*gradients, strict=True))]


@pytest.mark.parametrize(
    "bounds", [[0, 20], [0, 1, 20], [0, 19, 20], [0, 7, 8, 20], list(range(21))]
)
@pytest.mark.parametrize("window", [None, 1, 2, 8, 13, 19, 20, 30])
def test_slices_give_what_the_whole_sample_gives(bounds: Sequence[int], window: int | None) -> None:
    *inputs, towards = drawn(20)
    found, expected = sliced(inputs, towards, bounds, window), whole(inputs, towards, window)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_a_window_reads_no_keys_before_it() -> None:
    row = SlicedRow.from_documents(Documents.from_lengths([4]), 10)
    assert [row.first_key(window) for window in (None, 1, 4, 10, 11, 12)] == [0, 10, 7, 1, 0, 0]
    assert row.keys(7).cu_seqlens.tolist() == [0, 7]
    assert row.keys(0).longest == 14


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixty_four_slices_in_16_bits_are_as_exact_as_the_whole_sample(dtype: torch.dtype) -> None:
    n_tokens = 512
    *inputs, towards = drawn(n_tokens, dtype)
    exact = whole([each.double() for each in inputs], towards.double())
    bounds = range(0, n_tokens + 1, n_tokens // 64)
    found, unsliced = sliced(inputs, towards, bounds), whole(inputs, towards)
    for one, other, right in zip(found, unsliced, exact, strict=True):
        error, unsliced_error = ((each.double() - right).norm() for each in (one, other))
        assert error <= 2 * unsliced_error


def test_sums_of_gradients_are_float32_and_only_of_what_comes_before() -> None:
    cache = LayerCache(8)
    key, value = torch.zeros(2, 8, 1, 4, dtype=torch.bfloat16).unbind()
    cache.write(0, key, value)
    gradients = torch.ones(8, 1, 4, dtype=torch.bfloat16), torch.ones(8, 1, 4, dtype=torch.bfloat16)
    complete = cache.sum_gradients(6, gradients)
    assert [(each.shape[0], each.dtype) for each in complete] == [(2, torch.bfloat16)] * 2
    *_, sums = cache.tensors
    assert (sums.shape[0], sums.dtype) == (6, torch.float32)


PAIRS = [
    Sample(0, 5, 3, rejected_tokens=7),
    Sample(1, 0, 1, rejected_tokens=1),
    Sample(2, 20, 1, rejected_tokens=4),
    Sample(3, 1, 30, rejected_tokens=17),
]


def batch_of(row: PackedRow) -> Batch:
    return Batch((1, row.row_tokens), segments_of(row))


def sees(pairs: Sequence[Sample], row_tokens: int, window: int = 1000) -> Tensor:
    """Whether each position of a row sees each other one, written out; fill sees itself only."""
    seen = torch.eye(row_tokens, dtype=torch.bool)
    start = 0
    for pair in pairs:
        answers = [0] * pair.input_tokens + [1] * pair.target_tokens + [2] * pair.rejected_tokens
        for i, own in enumerate(answers):
            for j, other in enumerate(answers[: i + 1]):
                n_between = sum(each in (0, own) for each in answers[j : i + 1])
                seen[start + i, start + j] = other in (0, own) and n_between <= window
        start += pair.tokens
    return seen


@pytest.mark.parametrize("n_kv_heads", [4, 2], ids=["heads", "groups"])
@pytest.mark.parametrize("pairs", [PAIRS, PAIRS[1:2], PAIRS[::-1]], ids=["all", "one", "reversed"])
@pytest.mark.parametrize("window", [None, 1, 6, 22])
def test_attention_and_its_gradients_are_those_of_a_written_out_mask(
    n_kv_heads: int, pairs: Sequence[Sample], window: int | None
) -> None:
    row = packed_microbatch(pairs, Recompute.NONE)
    n_tokens = sum(pair.tokens for pair in pairs)
    stream = torch.Generator().manual_seed(2)
    query, key, value, direction = (
        torch.randn(1, row.row_tokens, heads, 8, dtype=torch.float64, generator=stream)
        for heads in (4, n_kv_heads, n_kv_heads, 4)
    )
    direction[:, n_tokens:] = 0  # what fills the row up attends in another way
    leaves = [each.requires_grad_() for each in (query, key, value)]
    found = batch_of(row).attend(query, key, value, window=window)
    keys, values = (each.repeat_interleave(4 // n_kv_heads, 2) for each in (key, value))
    scores = torch.einsum("rqhd,rkhd->rhqk", query, keys) * 8**-0.5
    weights = scores.masked_fill(~sees(pairs, row.row_tokens, window or 1000), -torch.inf).softmax(
        3
    )
    expected = torch.einsum("rhqk,rkhd->rqhd", weights, values)
    torch.testing.assert_close(found[:, :n_tokens], expected[:, :n_tokens], rtol=1e-11, atol=1e-13)
    gradients = (torch.autograd.grad(each, leaves, direction) for each in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)


TOKENS = [int(i) for i in torch.randint(30, (20,), generator=torch.manual_seed(3))]


@pytest.mark.parametrize("n_at_first", [1, 7])
@pytest.mark.parametrize("shape", [SHAPE, LLAMA_SHAPE], ids=name_of)
def test_logits_are_the_same_with_kept_keys_and_values(shape: ModelShape, n_at_first: int) -> None:
    layers = range(shape.n_all_layers)
    stage = family_of(shape)(shape, layers, first=True, last=True, dtype=torch.float64)
    for seed, weight in enumerate(stage.parameters()):
        nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    kv_cache = KeyValueCache()
    passes = [TOKENS[:n_at_first], *([token] for token in TOKENS[n_at_first:])]
    found = torch.cat([logits_of(stage, tokens, kv_cache=kv_cache) for tokens in passes])
    torch.testing.assert_close(found, logits_of(stage, TOKENS), rtol=1e-11, atol=1e-11)


KINDS = ["inputs", "targets", "across"]
Pairs = Sequence[tuple[int, int]]


def packed(lengths: Pairs) -> Batch:
    ends = [tuple(accumulate(side, initial=0)) for side in zip(*lengths, strict=True)]
    inputs, targets = (Batch((1, side[-1]), Documents.between(side, side[-1])) for side in ends)
    return replace(targets, source=inputs)


def masks_of(kind: str, batch: Batch) -> AttentionMasks:
    assert batch.source is not None
    causal = kind == "targets"
    bias = RelativeBias(T5_SHAPE, ONE_SHARD, causal=causal).double()
    torch.nn.init.normal_(bias.weight, generator=torch.manual_seed(9))
    if kind == "across":
        return AttentionMasks.across(batch, batch.source, torch.float64)
    if causal:
        return AttentionMasks.from_targets(batch, bias)
    return AttentionMasks.from_inputs(batch.source, bias, torch.float64)


def rows_of(kind: str, lengths: Pairs) -> tuple[list[int], list[int]]:
    """Lengths of the documents that attend, and of those that are attended to."""
    inputs, targets = ([pair[side] for pair in lengths] for side in range(2))
    sources = inputs if kind in ("inputs", "across") else targets
    return inputs if kind == "inputs" else targets, sources


def random_heads(tokens: int, seed: int, size: int = 5) -> Tensor:
    stream = torch.manual_seed(seed)
    return torch.randn(1, T5_SHAPE.n_heads, tokens, size, dtype=torch.float64, generator=stream)


@pytest.mark.parametrize("kind", [*KINDS, "plain"])
@pytest.mark.parametrize("length", [(1, 1), (15, 1), (16, 40), (130, 17), (31, 200)])
def test_a_document_has_the_bits_that_it_has_alone(kind: str, length: tuple[int, int]) -> None:
    # In vectors of 5 numbers, kernels of causal attention see where in memory a row begins.
    size = 4 if kind == "plain" else 5
    neighbours = [[(20, 3), length, (length[0], 9), (139, 200)], [length]]
    found = []
    for lengths in neighbours:
        own, sources = rows_of(kind, lengths)
        place = lengths.index(length)
        mine = slice(sum(own[:place]), sum(own[: place + 1]))
        seen_by_mine = slice(sum(sources[:place]), sum(sources[: place + 1]))
        inputs = []
        for i, (n, at) in enumerate(
            ((own, mine), (sources, seen_by_mine), (sources, seen_by_mine))
        ):
            row = random_heads(sum(n), 10 + i, size)
            row[:, :, at] = random_heads(at.stop - at.start, i, size)
            inputs.append(row.requires_grad_())
        batch = packed(lengths)
        if kind == "plain":
            assert isinstance(batch.segments, Documents)
            query, key, value = inputs
            attended = causal_attention(query, key, value, batch.segments)[:, :, mine]
        else:
            attended = masks_of(kind, batch).attend(*inputs)[:, :, mine]
        towards = random_heads(mine.stop - mine.start, 5, size)
        query, key, value = torch.autograd.grad(attended, inputs, towards)
        found.append(
            [attended, query[:, :, mine], key[:, :, seen_by_mine], value[:, :, seen_by_mine]]
        )
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


def test_nothing_as_large_as_the_square_of_a_packed_row_is_made() -> None:
    lengths = [(16, 16)] * 64
    for kind in KINDS:
        biases = masks_of(kind, packed(lengths)).biases
        assert sum(bias.numel() for bias in biases if bias is not None) <= 64 * 16 * 16 * 4


@pytest.mark.parametrize("mode", [Recompute.SELECTIVE, Recompute.FULL], ids=lambda mode: mode.text)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_what_recomputation_adds_to_scores_is_seen_by_whoever_counts_what_is_kept(
    side: str, mode: Recompute
) -> None:
    lengths, hidden = [(5, 2), (18, 7)], T5_SHAPE.hidden_size
    batch = packed(lengths)
    n_inputs, n_targets = (sum(side) for side in zip(*lengths, strict=True))
    inputs = torch.zeros(1, n_inputs, hidden, dtype=torch.float64, requires_grad=True)
    targets = torch.zeros(1, n_targets, hidden, dtype=torch.float64, requires_grad=True)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    kinds = ["inputs"] if side == "encoder" else ["targets", "across"]
    masks = [masks_of(kind, batch) for kind in kinds]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        if side == "encoder":
            layer: nn.Module = EncoderLayer(T5_SHAPE, ONE_SHARD).double()
            layer(inputs, residual_stream(ONE_SHARD, 1, n_inputs), *masks, mode)
        else:
            layer = DecoderLayer(T5_SHAPE, ONE_SHARD).double()
            stream = residual_stream(ONE_SHARD, 1, n_targets)
            layer(targets, stream, BothMasks(*masks), mode, inputs)
    kept = {tensor.untyped_storage().data_ptr() for tensor in saved}
    for bias in (bias for each in masks for bias in each.biases if bias is not None):
        assert bias.untyped_storage().data_ptr() in kept
