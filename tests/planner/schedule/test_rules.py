"""The schedule rules: in pictures, as printed, and as published."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.examples.linear_cost import linear_cost, samples_of
from tests.examples.stage_costs import (
    drawn_costs,
    equal_stages,
    no_limit,
    parse_schedule,
    schedule_of,
    splits_backward,
    tightest_limit,
    with_columns,
)
from tests.oracles.event_simulation import EventSimulation
from tests.oracles.list_schedule import ListSchedule

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.batch.microbatch_costs import PricedReplica
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.pipeline import check_each_fits, schedule_replica
from dynapipe_hpc.planner.schedule.rules import (
    RULES,
    SPLIT_RULES,
    adaptive,
    adaptive_split,
    cyclic,
    one_f_one_b,
    schedule_rules,
    zb_h1,
)
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    InfeasibleScheduleError,
    Pass,
    PassKind,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import (
    ScheduleDeadlockError,
    Timeline,
    iteration_ms,
    simulate,
)


def cyclic_order(costs: StageCosts, limit_bytes: FloatArray) -> Schedule:
    """The paper's algorithm 1 as printed, if memory suffices to the end of the backward pass."""
    n = costs.n_stages
    orders: list[list[Pass]] = [[] for _ in range(n)]
    forward: list[list[int]] = [[] for _ in range(n)]
    backward: list[list[int]] = [[] for _ in range(n)]
    kept: list[list[int]] = [[] for _ in range(n)]
    forward[0] = list(range(costs.n_microbatches))
    while any(forward) or any(backward):
        unlocked: list[tuple[list[int], int]] = []
        for j in range(n):
            if backward[j]:
                i = backward[j].pop(0)
                kept[j].remove(i)
                orders[j].append(Pass(PassKind.BACKWARD, i))
                if j > 0:
                    unlocked.append((backward[j - 1], i))
            if forward[j] and _fits(costs, j, kept[j] + forward[j][:1], float(limit_bytes[j])):
                i = forward[j].pop(0)
                kept[j].append(i)
                orders[j].append(Pass(PassKind.FORWARD, i))
                unlocked.append((forward[j + 1] if j + 1 < n else backward[j], i))
        for ready, i in unlocked:
            ready.append(i)
    return schedule_of(orders)


def _fits(costs: StageCosts, stage: int, kept: list[int], limit: float) -> bool:
    """Whether the last of `kept` can run forward now, and then all of them backward in order."""
    stored = costs.stored_bytes[:, stage]
    needs = [float(stored[kept].sum() + costs.forward_transient_bytes[kept[-1], stage])]
    for n_gone, i in enumerate(kept):
        left = stored[kept[n_gone:]].sum()
        needs.append(float(left + costs.backward_transient_bytes[i, stage]))
    return max(needs) <= limit


def picture_of(n_microbatches: int, n_stages: int) -> str:
    costs = equal_stages([1] * n_microbatches, n_stages)
    return str(one_f_one_b(costs, no_limit(costs)))


def test_every_stage_warms_up_once_less_than_the_one_before() -> None:
    assert picture_of(n_microbatches=5, n_stages=3) == dedent("""\
        F0 F1 F2 B0 F3 B1 F4 B2 B3 B4
        F0 F1 B0 F2 B1 F3 B2 F4 B3 B4
        F0 B0 F1 B1 F2 B2 F3 B3 F4 B4""")


@pytest.mark.parametrize(
    ("rule", "model_bytes", "message"),
    [
        (one_f_one_b, 2.0, "1f1b needs 4 bytes on stage 1, but .* is 3; add 'cyclic'"),
        (zb_h1, 1.0, "zb_h1 needs 4 bytes on stage 1, but cluster.device_memory_bytes is 3"),
    ],
)
def test_a_stage_that_would_exceed_its_limit_is_named(
    rule: ScheduleRule, model_bytes: float, message: str
) -> None:
    replica = PricedReplica(list, equal_stages([1] * 5, n_stages=3), ())
    cost = replace(linear_cost((1.0,) * 3), static_bytes=np.array([0.0, model_bytes, 0.0]))
    cluster = Cluster(n_stages=3, device_memory_bytes=3)
    with pytest.raises(InfeasibleScheduleError, match=message):
        schedule_replica(replica, cost, cluster, [rule])


@given(drawn_costs())
def test_one_byte_less_than_a_microbatch_needs_alone_is_refused(costs: StageCosts) -> None:
    limit = tightest_limit(costs)
    check_each_fits(costs, limit)
    with pytest.raises(InfeasibleScheduleError, match=r"micro-batch .* alone needs .* on stage"):
        check_each_fits(costs, limit - 1)


def test_what_cannot_run_at_all_is_refused_even_without_a_limit() -> None:
    costs = equal_stages([1, 1], n_stages=2, stored_bytes=[1, np.inf])
    with pytest.raises(InfeasibleScheduleError, match="micro-batch 1 alone needs inf bytes"):
        check_each_fits(costs, no_limit(costs))


@given(drawn_costs(), st.lists(st.integers(0, 30), min_size=5, max_size=5))
def test_the_kernel_agrees_with_the_printed_algorithm(costs: StageCosts, room: list[int]) -> None:
    limit = tightest_limit(costs) + np.array(room[: costs.n_stages])
    assert cyclic(costs, limit) == cyclic_order(costs, limit)


def timeline_of(costs: StageCosts, rule: ScheduleRule = one_f_one_b) -> Timeline:
    schedule = rule(costs, no_limit(costs))
    return simulate(schedule, costs, INSTANT, np.zeros(costs.n_stages))


def test_the_later_a_stage_the_longer_it_puts_off_gradients_of_weights() -> None:
    costs = equal_stages([1] * 5, n_stages=3)
    assert str(zb_h1(costs, no_limit(costs))) == dedent("""\
        F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4
        F0 F1 B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 B4 W3 W4
        F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4""")


@pytest.mark.parametrize(("n_microbatches", "n_stages"), [(8, 4), (12, 4), (20, 8)])
def test_only_a_pass_per_stage_is_lost_where_1f1b_loses_three(
    n_microbatches: int, n_stages: int
) -> None:
    costs = equal_stages([1] * n_microbatches, n_stages)
    assert timeline_of(costs, zb_h1).makespan_ms == 3 * n_microbatches + n_stages - 1
    assert timeline_of(costs).makespan_ms == 3 * (n_microbatches + n_stages - 1)


CASES = json.loads(Path(__file__).with_name("published_schedules.json").read_text())["cases"]
TRANSFER_MS = 0.6
N_STAGES = 4
UNIT_BYTES = 1000


def limit_of(n_units: float) -> FloatArray:
    return np.full(N_STAGES, n_units * UNIT_BYTES, np.float64)


def costs_of(case: dict[str, Any]) -> StageCosts:
    stored_bytes = [UNIT_BYTES * units for units in case["stored_units"]]
    return equal_stages(case["forward_ms"], N_STAGES, stored_bytes)


def published_of(case: dict[str, Any], costs: StageCosts) -> Schedule:
    match case["rule"]:
        case "1f1b":
            return one_f_one_b(costs, no_limit(costs))
        case "cyclic":
            return cyclic(costs, limit_of(case["limit_units"] or np.inf))
        case _:  # "fifo" is not one of our rules, but its order can be simulated
            return parse_schedule("\n".join(case["orders"]))


def named(case: dict[str, Any]) -> str:
    limit = case["limit_units"] or "none"
    transfers = "-transfers" if case["with_transfers"] else ""
    return f"{case['rule']}-{len(case['forward_ms'])}-limit-{limit}{transfers}"


@pytest.mark.parametrize("full_duplex", [False, True])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_published_schedule_is_reproduced(case: dict[str, Any], full_duplex: bool) -> None:
    costs = costs_of(case)
    schedule = published_of(case, costs)
    link = Link(latency_ms=case["with_transfers"] * TRANSFER_MS, full_duplex=full_duplex)
    timeline = simulate(schedule, costs, link, np.zeros(N_STAGES))
    assert schedule == parse_schedule("\n".join(case["orders"]))
    assert timeline.makespan_ms == pytest.approx(case["makespan_ms"], abs=1e-9)
    assert timeline.peak_bytes.tolist() == [UNIT_BYTES * units for units in case["peak_units"]]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, [one_f_one_b, cyclic, adaptive]),
        ({"rules": ["cyclic", "1f1b"]}, [cyclic, one_f_one_b]),
        ({"split_backward": True}, [one_f_one_b, zb_h1, adaptive_split, adaptive]),
        ({"split_backward": True, "rules": ["zb_h1"]}, [zb_h1]),
    ],
)
def test_rules_are_tried_in_their_order(table: dict[str, Any], expected: list[object]) -> None:
    assert schedule_rules(ScheduleConfig.model_validate(table)) == expected


@pytest.mark.parametrize(("rule", "split"), [("cyclic", True), ("zb_h1", False)])
def test_rules_that_do_not_go_with_split_backward_are_refused(rule: str, split: bool) -> None:
    message = f"rules: '{rule}' cannot be used with split_backward = {str(split).lower()}; these "
    with pytest.raises(ValidationError, match=message):
        ScheduleConfig.model_validate({"rules": ["1f1b", rule], "split_backward": split})


LINKS = st.builds(
    Link,
    latency_ms=st.integers(0, 5),
    bytes_per_ms=st.sampled_from([1, 4]),
    full_duplex=st.booleans(),
)


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


@st.composite
def sliced_costs(draw: st.DrawFn) -> tuple[StageCosts, FloatArray]:
    """Costs of which some may be slices, and the least memory in which each sample fits alone."""
    costs = draw(reduced_costs())
    size = draw(st.integers(1, 4))
    if size == 1:
        return costs, tightest_limit(costs)
    later = np.arange(costs.n_microbatches)[::-1].astype(np.uint32) % size
    sample = np.append(0, np.cumsum(later == 0)[:-1])
    transient = costs.backward_transient_bytes[sample]  # that of all slices of a sample
    alike = with_columns(
        costs, forward_transient_bytes=transient / 2, backward_transient_bytes=transient
    )
    kept = np.array([costs.stored_bytes[sample == i].sum(axis=0) for i in sample])
    return replace(alike, later_slices=later), (kept + transient).max(axis=0)


@given(sliced_costs(), LINKS, st.sampled_from([0.0, 3.0, np.inf]), st.booleans())
def test_the_kernel_agrees_with_a_slow_clock(
    of_samples: tuple[StageCosts, FloatArray], link: Link, more_bytes: float, split_backward: bool
) -> None:
    costs, least_bytes = of_samples
    reduce_ms = np.zeros(costs.n_stages) if costs.reduce_ms is None else costs.reduce_ms
    limit = least_bytes + more_bytes
    slow = [
        ListSchedule(costs, limit, link, split_backward=split_backward, alternates=alternates)
        for alternates in (False, True)
    ]
    expected = min(slow, key=lambda schedule: schedule.reduced_ms(reduce_ms))
    schedule = (adaptive_split if split_backward else adaptive)(costs, limit, link)
    assert schedule == expected.schedule
    timeline = simulate(schedule, costs, link, np.zeros(costs.n_stages))
    assert timeline.makespan_ms == expected.makespan_ms
    assert np.all(timeline.peak_bytes <= limit)


def simulated(picture: str, costs: StageCosts, link: Link = INSTANT) -> Timeline:
    return simulate(parse_schedule(picture), costs, link, np.zeros(costs.n_stages))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, StageCosts, Link]:
    costs = draw(drawn_costs())
    rule = draw(st.sampled_from([*RULES.values(), *SPLIT_RULES.values()]))
    link = Link(
        latency_ms=draw(st.integers(0, 5)),
        bytes_per_ms=draw(st.sampled_from([1, 4])),
        full_duplex=draw(st.booleans()),
    )
    return rule(costs, no_limit(costs)), costs, link


@given(cases())
def test_the_kernel_agrees_with_a_clock(case: tuple[Schedule, StageCosts, Link]) -> None:
    schedule, costs, link = case
    expected = EventSimulation(schedule, costs, link)
    timeline = simulate(schedule, costs, link, np.zeros(costs.n_stages))
    for s, passes in enumerate(schedule.passes):
        for n, p in enumerate(passes):
            assert (timeline.start_ms[s, n], timeline.end_ms[s, n]) == expected.passes_ms[s, p]
            sent = expected.sends_ms.get((s, p), (np.nan, np.nan))
            found = (timeline.send_start_ms[s, n], timeline.send_end_ms[s, n])
            np.testing.assert_array_equal(found, sent)
        assert timeline.peak_bytes[s] == max(expected.stages[s].memory_bytes)
    assert timeline.makespan_ms == max(end for _, end in expected.passes_ms.values())
    work_ms = costs.work_ms + costs.splitting_ms * splits_backward(schedule)
    np.testing.assert_array_equal(timeline.busy_ms, work_ms.sum(axis=0))


def test_stages_that_wait_for_each_other_are_named() -> None:
    message = "no pass can start: stage 0 waits for the input of B1, stage 1 .* of F1"
    with pytest.raises(ScheduleDeadlockError, match=message):
        simulated("F0 B1 F1 B0 \n F0 F1 B0 B1", equal_stages([1, 1], n_stages=2))


def test_a_pass_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row 1 of the order must hold .* but has code 0 twice"):
        simulated("F0 B0 \n F0 F0", equal_stages([1], n_stages=2))


# Of one micro-batch, the second stage ends after 1 + 1 + 2 ms and the first after 2 more.
@pytest.mark.parametrize(
    ("weights_ms", "expected_ms"),
    [((0.0, 0.0), 6), ((3.0, 3.0), 6 + 3 + 3), ((1.0, 2.0), 6 + 1 + 2), ((1.0, 9.0), 4 + 9 + 9)],
)
def test_a_stage_reduces_while_those_before_it_compute(
    weights_ms: Sequence[float], expected_ms: float
) -> None:
    cost = linear_cost(weights_ms=tuple(weights_ms))
    assert iteration_ms([timeline_of(equal_stages([1], n_stages=2))], cost) == expected_ms


def test_a_stage_waits_for_the_same_stage_of_all_replicas() -> None:
    replicas = [timeline_of(equal_stages([ms], n_stages=2)) for ms in (1, 10)]
    assert iteration_ms(replicas, linear_cost(weights_ms=(1.0, 30.0))) == 40 + 30 + 30
