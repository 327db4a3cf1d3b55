"""Rejected answers attend to their prompt and to themselves, as if they followed it."""

from collections.abc import Sequence

import pytest
import torch
from tests.examples.preference_training import packed_pairs
from torch import Tensor

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.attention_context import AttentionContext, Branches
from dynapipe_hpc.models.documents import Documents

PAIRS = [
    Sample(0, 5, 3, rejected_tokens=7),
    Sample(1, 0, 1, rejected_tokens=1),
    Sample(2, 20, 1, rejected_tokens=4),
    Sample(3, 1, 30, rejected_tokens=17),
]


def context_of(row: PackedRow) -> AttentionContext:
    branches = Branches.from_microbatch(row)
    return AttentionContext(Documents.from_microbatch(row), branches=branches)


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
    found = context_of(row).attend_turned(query, key, value, window=window)
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
    positions = context_of(row).positions
    assert positions is not None
    prompt, chosen, rejected = range(5), range(5, 8), range(5, 12)
    expected = [*prompt, *chosen, *rejected, 0, 0, *range(7)]
    assert positions.tolist() == expected
    assert row.row_tokens == len(expected)
