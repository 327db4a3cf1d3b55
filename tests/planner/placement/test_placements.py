from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.measured_layers import (
    SHAPE,
    T5_SHAPE,
    linear_layer,
    linear_t5_table,
    linear_table,
)

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import FloatArray, Shapes
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts, costs_of
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable
from dynapipe_hpc.planner.placement import (
    PartCosts,
    TypicalSizes,
    best_placement,
    placements,
    typical_sizes,
)

Counts = tuple[int, ...]


def every_placement(n_layers: int, n_stages: int) -> list[Counts]:
    cuts = combinations(range(1, n_layers), n_stages - 1)
    return [tuple(j - i for i, j in pairwise((0, *cut, n_layers))) for cut in cuts]


def by_cost(costs: CostSource, shape: ModelShape, cluster: Cluster, sizes: TypicalSizes) -> Counts:
    """The last of the placements, which follow equal shares."""
    return placements(costs, shape, cluster, [sizes])[-1].layers_per_stage


def on_stages(table: FloatArray, counts: Counts) -> list[float]:
    edges = np.concatenate([[0], np.cumsum(counts)])
    return [float(table[s, i, j]) for s, (i, j) in enumerate(pairwise(edges))]


NUMBERS = st.integers(0, 5)


@st.composite
def tables(draw: st.DrawFn) -> tuple[FloatArray, FloatArray]:
    """Times and excess memory, drawn from few numbers so that ties are common."""
    n_stages, n_layers = draw(st.integers(1, 4)), draw(st.integers(4, 6))
    layers_sides_and_ends = [float(draw(NUMBERS)) for _ in range(7)]
    turn = draw(st.integers(1, n_layers))
    times = PartCosts(turn, *layers_sides_and_ends).on_stages(n_layers, n_stages)
    excess = np.array(draw(st.lists(NUMBERS, min_size=49 * 4, max_size=49 * 4)), dtype=float)
    return times, excess.reshape(4, 7, 7)[:n_stages, : n_layers + 1, : n_layers + 1] // 5


@given(found=tables())
def test_no_placement_is_better(found: tuple[FloatArray, FloatArray]) -> None:
    times, excess = found
    n_stages, n_layers = times.shape[0], times.shape[1] - 1

    def badness(counts: Counts) -> tuple[float, float, float, Counts]:
        each = on_stages(times, counts)
        squares = sum(ms**2 for ms in each)
        return max(on_stages(excess, counts)), max(each), squares, counts

    best = min(every_placement(n_layers, n_stages), key=badness)
    assert best_placement(times, excess).layers_per_stage == best


def one(n_rows: int, row_tokens: int, target_tokens: int = 0) -> Shapes:
    return Shapes.padded(*np.array([[n_rows], [row_tokens], [target_tokens]]))


def measured(table: ProfileTable) -> MeasuredCosts:
    return MeasuredCosts(ProfiledConfig(path=Path("costs.h5")), table)


def cluster_of(n_stages: int, memory_bytes: int = 10**9) -> Cluster:
    return Cluster(n_stages=n_stages, device_memory_bytes=memory_bytes)


def test_a_head_that_grows_faster_than_a_layer_gives_a_placement_for_every_size() -> None:
    head = linear_layer(1.0)
    forward_ms, backward_ms = (0.05 * ms**2 for ms in (head.forward_ms, head.backward_ms))
    head = replace(head, forward_ms=forward_ms, backward_ms=backward_ms)
    config = measured(linear_table(head=head))
    small, large = (TypicalSizes(one(n_rows, 16), one(1, 64)) for n_rows in (2, 4))
    alone = [by_cost(config, SHAPE, cluster_of(2), sizes) for sizes in (small, large)]
    assert alone[0] != alone[1]
    found = placements(config, SHAPE, cluster_of(2), [small, large])
    assert {placement.layers_per_stage for placement in found} == {(3, 3), *alone}
    assert found[-1].layers_per_stage == alone[1]


def test_a_model_of_packed_rows_is_placed_by_their_costs() -> None:
    packed = {
        key._replace(layout=Layout.PACKED.text): layer
        for key, layer in linear_table(head=linear_layer(0.9)).layers.items()
    }
    config = measured(replace(linear_table(), layers={**linear_table().layers, **packed}))
    sizes = TypicalSizes(one(2, 32), one(1, 64))
    for layout, expected in ((Layout.PADDED, (4, 2)), (Layout.PACKED, (3, 3))):
        found = placements(config, SHAPE, cluster_of(2), [sizes], layout=layout)
        assert found[-1].layers_per_stage == expected


def test_a_placement_that_fits_wins_over_a_faster_one() -> None:
    table = linear_table(embedding=linear_layer(0.01, parameter_bytes=1000.0))
    config, sizes = measured(table), TypicalSizes(one(1, 16), one(1, 16))
    assert by_cost(config, SHAPE, cluster_of(2), sizes) == (4, 2)
    full = [_needed(config, (k, 6 - k))[0] for k in (3, 4)]
    tight = cluster_of(2, int(np.mean(full)))
    assert by_cost(config, SHAPE, tight, sizes) == (3, 3)


def _needed(costs_read: CostSource, counts: Counts) -> list[float]:
    """With two micro-batches of 16 tokens in flight on the first stage and one on the second."""
    cost, _ = costs_of(costs_read, SHAPE, Placement(counts), cluster_of(2))
    costs = cost.stage_costs(one(1, 16))
    needed = cost.static_bytes + activation_bytes(costs)[0] + costs.stored_bytes[0] * [1, 0]
    return list(map(float, needed))


def test_sizes_of_packed_pairs_are_halved_on_both_sides() -> None:
    config = measured(linear_t5_table())
    few, many = (Shapes.padded(*np.array([[n], [16], [16]])) for n in (1, 64))
    found = [
        placements(config, T5_SHAPE, cluster_of(2), [TypicalSizes(each, few)], layout=Layout.PACKED)
        for each in (few, many)
    ]
    assert len(found[0]) == 2
    assert found[0] == found[1]


CLUSTER = Cluster(n_replicas=2, n_stages=4, device_memory_bytes=10**9)


def test_half_of_all_tokens_are_in_rows_of_at_most_the_common_length() -> None:
    rows = np.array([8] * 100 + [400, 800])
    many, few = typical_sizes(RowLengths(rows, np.zeros_like(rows)), 32 * 1000, CLUSTER)
    assert [int(side[0]) for side in many.common[:3]] == [2, 400, 0]
    assert [int(side[0]) for side in few.common[:3]] == [10, 400, 0]
    assert [int(side[0]) for side in many.longest[:3]] == [1, 800, 0]
    assert few.longest is many.longest
