"""Attention to a cache and along branches, against that of whole samples."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from tests.examples.preference_training import packed_pairs
from tests.examples.training_case import LLAMA_SHAPE, SHAPE, name_of
from torch import Tensor, nn

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.documents import Documents, SlicedRow, segments_of
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.key_value_cache import KeyValueCache, LayerCache
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
    row = packed_pairs(pairs)
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


def test_positions_of_a_rejected_answer_go_on_from_its_prompt() -> None:
    row = packed_pairs(PAIRS[:2])
    positions = batch_of(row).positions
    assert positions is not None
    prompt, chosen, rejected = range(5), range(5, 8), range(5, 12)
    expected = [*prompt, *chosen, *rejected, 0, 0, *range(7)]
    assert positions.tolist() == expected
    assert row.row_tokens == len(expected)


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
