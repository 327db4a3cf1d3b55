from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples.measured_layers import T5_SHAPE

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import KnownRows

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


@given(pairs=PAIRS, n_inputs=st.integers(0, 5), n_targets=st.integers(0, 5))
@example(pairs=[(0, 1)], n_inputs=0, n_targets=1)
@example(pairs=[(0, 1)], n_inputs=1, n_targets=0)
def test_what_fills_rows_up_by_much_costs_what_short_documents_do(
    pairs: Pairs, n_inputs: int, n_targets: int
) -> None:
    cost = analytic_cost(T5_SHAPE, PLACEMENT, CLUSTER, RATES)
    pairs = [*pairs, filling_up(pairs)]
    whole = packed(pairs)
    filled = replace(
        whole,
        row_tokens=whole.row_tokens + 128 * n_inputs,
        target_tokens=whole.target_tokens + 128 * n_targets,
    )
    found = microbatch_costs([filled], cost).forward_ms[0] * RATES.flops_per_ms
    width, heads = T5_SHAPE.hidden_size, T5_SHAPE.attention_size
    per_token = 8 * width * heads + 4 * width * T5_SHAPE.ffn_size
    encoder = 128 * n_inputs * (per_token + 4 * heads * 128)
    decoder = 128 * n_targets * (per_token + 4 * width * heads)
    decoder += 128 * n_inputs * 4 * width * heads
    # Every position is attended to by at least one target and at most by all.
    most = filled.target_tokens * (filled.target_tokens + filled.row_tokens)
    least = most // filled.target_tokens
    of_samples = sum(b * (a + b) for a, b in of_documents(pairs))
    of_all = sorted((least, of_samples + 128 * n_targets * 256, most))[1]
    decoder += 4 * heads * (of_all - of_samples)
    embedding = width * (
        max(filled.row_tokens, filled.target_tokens) - max(whole.row_tokens, whole.target_tokens)
    )
    more = [2 * encoder + embedding, encoder + decoder + embedding]
    more.append(2 * decoder + 2 * width * 50 * 128 * n_targets)
    np.testing.assert_allclose(found, np.array(forward_flops(pairs)) + more, rtol=1e-6)


def test_rows_of_either_side_are_never_more_or_shorter_than_those_that_are_known() -> None:
    microbatch = packed([(64, 8)] * 8)
    (n_rows,), (inputs,), (targets,), (input_rows,) = shapes_of(
        [microbatch], KnownRows((1, 2, 4), 4, 32)
    )
    assert (n_rows, inputs, targets, input_rows) == (2, 256, 32, 4)


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
