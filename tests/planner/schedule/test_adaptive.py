"""The adaptive schedule: in pictures, against a slow clock, and beside the other rules."""

from dataclasses import replace
from textwrap import dedent

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.linear_cost import linear_cost, samples_of
from tests.examples.stage_costs import drawn_costs, equal_stages, tightest_limit, with_columns
from tests.oracles.list_schedule import LightestFirst, ListSchedule

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.pipeline import schedule_replica
from dynapipe_hpc.planner.schedule.simulate import simulate

LINKS = st.builds(
    Link,
    latency_ms=st.integers(0, 5),
    bytes_per_ms=st.sampled_from([1, 4]),
    full_duplex=st.booleans(),
)


def test_a_stage_runs_what_has_arrived_and_backward_passes_first() -> None:
    schedule = adaptive(equal_stages([1] * 5, 3), np.full(3, 3.0))
    assert str(schedule) == dedent("""\
        F0 F1 F2 B0 F3 B1 F4 B2 B3 B4
        F0 F1 F2 B0 B1 F3 B2 F4 B3 B4
        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4""")


def test_of_two_schedules_the_one_whose_gradients_are_reduced_first_is_taken() -> None:
    # F2 before B1 lets the last stage end after 22 ms rather than 23, but the first one after 24.
    of_stages = with_columns(
        equal_stages([1] * 4, 2),
        forward_ms=[[2, 2], [2, 3], [2, 1], [1, 3]],
        backward_ms=[[5, 2], [3, 3], [4, 4], [3, 2]],
        weight_ms=[[2, 1], [2, 2], [1, 2], [1, 1]],
    )
    cluster = Cluster(n_stages=2, device_memory_bytes=2)
    microbatches = [padded_microbatch([sample], Recompute.NONE) for sample in samples_of([1] * 4)]
    for reduce_ms, ends_ms in (((), [23, 23]), ((0.0, 5.0), [24, 22])):
        cost = linear_cost(weights_ms=reduce_ms)
        replica = PricedReplica(lambda: microbatches, of_stages, ())
        scheduled = schedule_replica(replica, cost, cluster, [adaptive_split])
        assert scheduled.timeline.end_ms[:, -1].round().tolist() == ends_ms


@st.composite
def positive_costs(draw: st.DrawFn) -> StageCosts:
    costs = draw(drawn_costs())
    return with_columns(
        costs,
        forward_ms=costs.forward_ms + 1,
        backward_ms=costs.backward_ms + costs.weight_ms + 2,
        weight_ms=costs.weight_ms + 1,
    )


@st.composite
def reduced_costs(draw: st.DrawFn) -> StageCosts:
    costs = draw(positive_costs())
    if draw(st.booleans()):
        return costs
    n_stages = costs.n_stages
    reduce_ms = draw(st.lists(st.integers(0, 20), min_size=n_stages, max_size=n_stages))
    return replace(costs, reduce_ms=np.array(reduce_ms, np.float64))


@given(reduced_costs(), LINKS, st.sampled_from([0.0, 3.0, np.inf]), st.booleans(), st.booleans())
def test_the_kernel_agrees_with_a_slow_clock(
    costs: StageCosts, link: Link, more_bytes: float, split_backward: bool, overtaking: bool
) -> None:
    reduce_ms = np.zeros(costs.n_stages) if costs.reduce_ms is None else costs.reduce_ms
    limit = tightest_limit(costs) + more_bytes
    slow = [
        ListSchedule(costs, limit, link, split_backward=split_backward, alternates=alternates)
        for alternates in (False, True)
    ]
    if overtaking:  # as where there are slices, if only none of these
        slow = [LightestFirst(costs, limit, link, split_backward=split_backward)]
        costs = replace(costs, later_slices=np.zeros(costs.n_microbatches, np.uint32))
    expected = min(slow, key=lambda schedule: schedule.reduced_ms(reduce_ms))
    schedule = (adaptive_split if split_backward else adaptive)(costs, limit, link)
    assert schedule == expected.schedule
    timeline = simulate(schedule, costs, link, np.zeros(costs.n_stages))
    assert timeline.makespan_ms == expected.makespan_ms
    assert np.all(timeline.peak_bytes <= limit)


@given(positive_costs(), st.floats(0.1, 10))
def test_fractions_of_bytes_do_not_make_it_stop(costs: StageCosts, scale: float) -> None:
    uneven = with_columns(
        costs,
        stored_bytes=costs.stored_bytes * scale,
        forward_transient_bytes=costs.forward_transient_bytes * scale / 3,
        backward_transient_bytes=costs.backward_transient_bytes * scale / 7,
    )
    schedule = adaptive(uneven, tightest_limit(uneven))
    assert all(len(passes) == 2 * costs.n_microbatches for passes in schedule.passes)
