"""Positions that those of a T5 attend to, by the definition of attention, and bit for bit."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from tests.examples.training_case import T5_SHAPE
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.sharding.sharded_linear import residual_stream
from dynapipe_hpc.models.sharding.shards import ONE_SHARD
from dynapipe_hpc.models.t5 import (
    AttentionMasks,
    BothMasks,
    DecoderLayer,
    RelativeBias,
    encoder_layer,
)

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
    both = {"inputs": (inputs, inputs), "targets": (targets, targets), "across": (targets, inputs)}
    return both[kind]


def random_heads(tokens: int, seed: int) -> Tensor:
    stream = torch.manual_seed(seed)
    return torch.randn(1, T5_SHAPE.n_heads, tokens, 5, dtype=torch.float64, generator=stream)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_see_all_of_their_own_and_nothing_else(kind: str) -> None:
    lengths = [(5, 2), (1, 18), (18, 1), (3, 3)]
    own, sources = rows_of(kind, lengths)
    query, key, value = (random_heads(sum(n), i) for i, n in enumerate((own, sources, sources)))
    batch = packed(lengths)
    found = masks_of(kind, batch).attend(query, key, value)
    biases = RelativeBias(T5_SHAPE, ONE_SHARD, causal=kind == "targets").double()
    torch.nn.init.normal_(biases.weight, generator=torch.manual_seed(9))
    start = source = 0
    for n, m in zip(own, sources, strict=True):
        scores = query[0, :, start : start + n] @ key[0, :, source : source + m].mT
        scores = scores if kind == "across" else scores + biases(n)[0]
        wanted = scores.softmax(-1) @ value[0, :, source : source + m]
        of_own = found[0, :, start : start + n]
        torch.testing.assert_close(of_own, wanted, rtol=1e-12, atol=1e-14)
        start, source = start + n, source + m


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [(1, 1), (15, 1), (16, 40), (130, 17), (31, 200)])
def test_a_document_has_the_bits_that_it_has_alone(kind: str, length: tuple[int, int]) -> None:
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
            row = random_heads(sum(n), 10 + i)
            row[:, :, at] = random_heads(at.stop - at.start, i)
            inputs.append(row.requires_grad_())
        attended = masks_of(kind, packed(lengths)).attend(*inputs)[:, :, mine]
        towards = random_heads(mine.stop - mine.start, 5)
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
            layer: nn.Module = encoder_layer(T5_SHAPE, ONE_SHARD).double()
            layer(inputs, residual_stream(ONE_SHARD, 1, n_inputs), *masks, mode)
        else:
            layer = DecoderLayer(T5_SHAPE, ONE_SHARD).double()
            stream = residual_stream(ONE_SHARD, 1, n_targets)
            layer(targets, stream, BothMasks(*masks), mode, inputs)
    kept = {tensor.untyped_storage().data_ptr() for tensor in saved}
    for bias in (bias for each in masks for bias in each.biases if bias is not None):
        assert bias.untyped_storage().data_ptr() in kept
