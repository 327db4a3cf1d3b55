"""Rows of micro-batches: how long they are, what packed ones hold, and what they cost."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import linear_cost
from tests.examples.measured_layers import SHAPE, T5_SHAPE, linear_table, with_packed
from tests.examples.training_case import RandomTokens

from dynapipe_hpc import _kernels
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import (
    Branch,
    DenseRows,
    ExecutionMode,
    Layout,
    MicroBatch,
    PackedRow,
    PaddedRows,
    Recompute,
)
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import IterationTokens, collate, collate_both_sides
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch, shapes_of
from dynapipe_hpc.planner.batch.price_windows import price_windows
from dynapipe_hpc.planner.batch.row_length import positions, tokens_of
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import Cost, KnownRows
from dynapipe_hpc.planner.cost.profiled import profiled_cost

Pairs = Sequence[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=1, max_size=9)
CLUSTER = Cluster(n_stages=3, device_memory_bytes=10**12)
PLACEMENT = Placement((2, 2, 2))  # encoder; its end and the decoder's beginning; decoder
# Arithmetic is all that takes time.
RATES = AnalyticConfig(
    flops_per_ms=1e3, memory_bytes_per_ms=1e15, launch_ms=1e-9, recompute=("none", "full")
)


def packed(pairs: Pairs, multiple: int = 8) -> PackedRow:
    ends = [tuple(accumulate(side, initial=0)) for side in zip(*of_documents(pairs), strict=True)]
    n_inputs, n_targets = (-(-side[-1] // multiple) * multiple for side in ends)
    return PackedRow(
        sample_ids=tuple(range(len(pairs))),
        row_tokens=n_inputs,
        offsets=ends[0],
        target_tokens=n_targets,
        target_offsets=ends[1],
    )


def of_documents(pairs: Pairs) -> list[tuple[int, int]]:
    return [(max(a, 1), b) for a, b in pairs]


def forward_flops(pairs: Pairs) -> list[float]:
    """Of the three stages: every product of matrices, attention sample by sample."""
    microbatch = packed(pairs)
    n_inputs, n_targets = microbatch.row_tokens, microbatch.target_tokens
    width, heads = T5_SHAPE.hidden_size, T5_SHAPE.attention_size
    of_inputs = sum(4 * heads * a * a for a, _ in of_documents(pairs))
    of_targets = sum(4 * heads * b * (a + b) for a, b in of_documents(pairs))
    per_token = 8 * width * heads + 4 * width * T5_SHAPE.ffn_size
    encoder = n_inputs * per_token + of_inputs
    decoder = n_targets * (per_token + 4 * width * heads) + n_inputs * 4 * width * heads
    decoder += of_targets
    ends = {"embedding": width * max(n_inputs, n_targets), "head": 2 * width * 50 * n_targets}
    return [
        2 * encoder + ends["embedding"],
        encoder + decoder + ends["embedding"],
        2 * decoder + ends["head"],
    ]


def filling_up(pairs: Pairs) -> tuple[int, int]:
    """A sample with which both rows are full."""
    inputs, targets = (sum(side) for side in zip(*of_documents(pairs), strict=True))
    return (8 - inputs % 8, 8 - targets % 8)


@given(pairs=PAIRS)
def test_estimates_are_the_sums_over_samples(pairs: Pairs) -> None:
    cost = analytic_cost(T5_SHAPE, PLACEMENT, CLUSTER, RATES)
    pairs = [*pairs, filling_up(pairs)]
    costs = microbatch_costs([packed(pairs)], cost)
    expected = np.array(forward_flops(pairs)) / RATES.flops_per_ms
    np.testing.assert_allclose(costs.forward_ms[0], expected, rtol=1e-6)


@given(
    pairs=PAIRS,
    first=st.integers(0, 8),
    size=st.integers(1, 9),
    multiple=st.sampled_from([8, 24, 512]),
)
@settings(max_examples=50)
def test_windows_are_those_of_their_samples(
    pairs: Pairs, first: int, size: int, multiple: int
) -> None:
    first = min(first, len(pairs) - 1)
    size = min(size, len(pairs) - first)
    cost = analytic_cost(T5_SHAPE, PLACEMENT, CLUSTER, RATES)
    samples = [Sample(i, a, b) for i, (a, b) in enumerate(pairs)]
    table = price_windows(samples, cost, CLUSTER, [Layout.PACKED], token_multiple=multiple)
    assert table.modes == tuple(ExecutionMode(Layout.PACKED, mode) for mode in cost.recompute_modes)
    found = table.microbatch(first, size, 0)
    own = packed(pairs[first : first + size], multiple)
    assert isinstance(found, PackedRow)
    assert found.sample_ids == tuple(range(first, first + size))
    assert (found.offsets, found.target_offsets) == (own.offsets, own.target_offsets)
    assert (found.row_tokens, found.target_tokens) == (own.row_tokens, own.target_tokens)
    (cell,) = table.cells_of(np.array([[first, size, 0]], np.uint32))
    expected = microbatch_costs([own], cost).table[0]
    np.testing.assert_allclose(table.costs.table[cell], expected, rtol=1e-12)


SIDES = st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40))


def pairs_of(sides: Sequence[tuple[int, int, int]]) -> list[Sample]:
    return [Sample(i, p, c, rejected_tokens=r) for i, (p, c, r) in enumerate(sides)]


def seen_pairs(prompt: int, chosen: int, rejected: int) -> int:
    """Pairs of tokens one of which attends to the other, in either order, counted one by one."""
    answers = [0] * prompt + [1] * chosen + [2] * rejected
    return sum({a, b} != {1, 2} for a in answers for b in answers)


def test_a_row_holds_every_prompt_once() -> None:
    pairs = pairs_of([(3, 2, 4), (0, 1, 5)])
    assert packed_microbatch(pairs, Recompute.FULL) == PackedRow(
        (0, 1), 16, (0, 9, 15), Recompute.FULL, branches=(Branch(5, 3), Branch(10, 0))
    )


@given(st.lists(SIDES, min_size=1, max_size=5))
def test_a_row_costs_its_tokens_and_the_pairs_that_see_each_other(
    sides: list[tuple[int, int, int]],
) -> None:
    row = packed_microbatch(pairs_of(sides), Recompute.NONE)
    n_rows, row_tokens, _, _ = (float(of[0]) for of in shapes_of([row], KnownRows()))
    expected = sum(seen_pairs(*each) for each in sides)
    assert n_rows * row_tokens == pytest.approx(row.row_tokens)
    # Fill counts as tokens of rows as long as the others.
    n_wanted = row.row_tokens**2 / expected
    assert n_rows == pytest.approx(max(1.0, min(n_wanted, 2 * len(sides))))


@given(st.lists(SIDES, min_size=2, max_size=5))
def test_windows_cost_what_their_rows_do(sides: list[tuple[int, int, int]]) -> None:
    pairs = pairs_of(sides)
    cluster = Cluster(device_memory_bytes=2**30)
    table = price_windows(pairs, linear_cost(), cluster, [Layout.PACKED])
    windows = [[0, len(pairs), 0], [1, len(pairs) - 1, 0]]
    found = table.shapes.take(table.cells_of(np.array(windows, np.uint32)).astype(np.int64))
    rows = [packed_microbatch(each, Recompute.NONE) for each in (pairs, pairs[1:])]
    np.testing.assert_array_equal(np.stack(found), np.stack(shapes_of(rows, KnownRows())))


ROW_LENGTH_SIDES = ("input", "target")
SAMPLES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=6)


@given(SAMPLES, st.booleans())
def test_the_last_position_of_a_row_predicts_the_last_token_of_its_samples(
    lengths: list[tuple[int, int]], is_encoder_decoder: bool
) -> None:
    samples = {i: Sample(i, *both) for i, both in enumerate(lengths)}
    inputs, targets = (tokens_of(list(samples.values()), f"{s}_tokens") for s in ROW_LENGTH_SIDES)
    row, target_row = (int(n.sum()) for n in positions(inputs, targets, is_encoder_decoder))
    dense = DenseRows((tuple(samples),), max(row, 1), target_tokens=target_row)
    tokens = IterationTokens(samples, dict.fromkeys(samples, 1.0), RandomTokens(), 30)
    if is_encoder_decoder:
        labels = collate_both_sides(dense, tokens).labels
    else:
        labels = collate(dense, tokens).labels
    assert labels is not None
    weights = labels.weights
    assert weights.shape == (1, target_row if is_encoder_decoder else row)
    assert weights[0, -1] == 1


def test_every_micro_batch_costs_what_its_own_layout_costs() -> None:
    cluster = Cluster(n_stages=1, device_memory_bytes=10**9)
    table, config = with_packed(linear_table(), 0.5), ProfiledConfig(path=Path("costs.h5"))
    cost = profiled_cost(table, SHAPE, equal_shares(SHAPE, cluster), cluster, config=config)
    packed = PackedRow((3, 4), 64, offsets=(0, 32, 64))
    padded = PaddedRows((1, 2), 32)
    costs = microbatch_costs([packed, padded, packed], cost)
    assert np.all(costs.work_ms[[0, 2]] == 0.5 * costs.work_ms[1])


def test_the_kernels_number_the_columns_of_costs_alike() -> None:
    kernels = {cost.name: cost.value for cost in _kernels.Cost}
    assert kernels == {cost.name: cost.value for cost in Cost}


def packed_of_cost_model(lengths: list[int], row_tokens: int) -> MicroBatch:
    offsets = tuple(map(int, np.cumsum([0, *lengths])))
    return PackedRow(tuple(range(len(lengths))), row_tokens, offsets)


@pytest.mark.parametrize(
    ("lengths", "row_tokens", "known", "expected"),
    [
        ([9], 16, KnownRows(), (1, 16)),
        ([5, 5], 16, KnownRows(), (2, 8)),
        ([24] * 5, 120, KnownRows((1, 2), 2), (2, 60)),
        ([8] * 8, 64, KnownRows(least_tokens=32), (2, 32)),
        ([8], 8, KnownRows(least_tokens=32), (1, 8)),
        ([128], 256, KnownRows(), (2, 128)),
        ([100], 300, KnownRows(), (2, 150)),
        ([100], 300, KnownRows(longest_tokens=200), (1.5, 200)),
        ([100], 300, KnownRows(longest_tokens=300), (1, 300)),
        ([100], 300, KnownRows((1,), 1, longest_tokens=200), (1, 300)),
    ],
)
def test_rows_that_are_too_many_or_too_short_are_fewer_and_longer(
    lengths: list[int], row_tokens: int, known: KnownRows, expected: tuple[float, float]
) -> None:
    (n_rows,), (tokens,), (targets,), _ = shapes_of(
        [packed_of_cost_model(lengths, row_tokens)], known
    )
    assert (n_rows, tokens, targets) == (*expected, 0)
