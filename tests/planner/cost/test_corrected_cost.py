"""A cost model whose times are corrected by those of passes, and plans of unequal replicas."""

import numpy as np
import pytest
from tests.examples.equal_shares import rows_only
from tests.examples.linear_cost import decoder_shapes, linear_cost, samples_of

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Backward, Forward
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Cost, FloatArray
from dynapipe_hpc.planner.cost.pass_times import Corrections, PassTimes, corrected_cost, shape_of
from dynapipe_hpc.planner.from_config import chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig

SIZES = (len(Layout), len(Recompute), 2, 3)
COST = linear_cost(token_ms=(0.01, 0.02), model_bytes=5.0, recomputes=True, weights_ms=(3.0, 7.0))
SHAPES = decoder_shapes(np.array([1, 4]), np.array([100, 8]))


def factors_with(**at: FloatArray) -> FloatArray:
    """Ones, but for some modes, by name of the layout."""
    factors = np.ones(SIZES)
    for layout, of_layout in at.items():
        factors[Layout.from_text(layout)] = of_layout
    return factors


def test_every_part_has_its_factor_and_memory_stays() -> None:
    """Half of a backward pass of `linear_cost` may be deferred."""
    of_stages = np.array([[2.0, 3.0, 5.0], [0.5, 0.25, 4.0]])
    cost = corrected_cost(COST, Corrections(factors_with(padded=of_stages)))
    plain, found = COST.stage_costs(SHAPES), cost.stage_costs(SHAPES)
    assert (plain.weight_ms > 0).all()
    for stage, (forward, gradient, weight) in enumerate(of_stages.tolist()):
        before, after = plain.table[:, stage], found.table[:, stage]
        rest = before[:, Cost.BACKWARD_MS] - before[:, Cost.WEIGHT_MS]
        deferred = weight * before[:, Cost.WEIGHT_MS]
        expected = {
            Cost.FORWARD_MS: forward * before[:, Cost.FORWARD_MS],
            Cost.BACKWARD_MS: gradient * rest + deferred,
            Cost.WEIGHT_MS: deferred,
            Cost.SPLITTING_MS: gradient * before[:, Cost.SPLITTING_MS],
        }
        for column in Cost:
            assert after[:, column] == pytest.approx(expected.get(column, before[:, column]))
    assert (cost.reduce_ms.tolist(), cost.step_ms) == ([3.0, 7.0], 7.0)
    assert cost.static_bytes.tolist() == [5.0, 5.0]


def test_what_cannot_run_stays_infinite() -> None:
    cost = linear_cost(longest_row=50)
    corrected = corrected_cost(cost, Corrections(factors_with(padded=np.full((2, 3), 2.0))))
    alone, together = corrected.stage_costs(SHAPES).table
    assert np.isinf(alone[:, [Cost.FORWARD_MS, Cost.BACKWARD_MS, Cost.WEIGHT_MS]]).all()
    assert np.isfinite(together).all()


def test_layouts_and_modes_are_corrected_apart_even_if_costs_do_not_tell_them_apart() -> None:
    factors = factors_with(packed=np.full((2, 3), 4.0))
    factors[Layout.PADDED, Recompute.FULL] = 3.0
    cost = corrected_cost(COST, Corrections(factors))
    packed = cost.of_layout(Layout.PACKED)
    assert cost.of_layout(Layout.PADDED) is cost
    for model, mode, factor in (
        (cost, Recompute.NONE, 1.0),
        (cost, Recompute.FULL, 3.0),
        (packed, Recompute.NONE, 4.0),
        (packed.of_layout(Layout.PADDED), Recompute.FULL, 3.0),
    ):
        found = model.stage_costs(SHAPES, mode).work_ms
        assert found == pytest.approx(factor * COST.stage_costs(SHAPES, mode).work_ms)


def times_of(plan: RankPlan) -> list[float]:
    return [end - start for start, end in plan.prediction.passes_ms]


@pytest.mark.parametrize("effort", [0, 50_000])
def test_a_slow_replica_gets_less_work_and_a_true_prediction(effort: int) -> None:
    """One stage of replica 1 takes twice as long, so that replica 1 should do half as much."""
    cluster = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=10**9)
    config = PlannerConfig(
        cost=AnalyticConfig(),
        batch=DynamicConfig(),
        schedule=ScheduleConfig(split_backward=False),
        search={"effort": effort},
    )
    cost = linear_cost()
    alike = Planner(chooser(config, cost, cluster, 512), cost, cluster, 8, rows_only(cluster))
    slowness = np.array([[1.0, 1.0], [1.0, 2.0]])
    slow = alike.corrected(config, Corrections(np.ones(SIZES), slowness), 512)
    samples = samples_of(np.random.default_rng(0).integers(8, 200, 120).tolist())
    plans = slow.make_plans(0, samples)
    for plan in plans:
        priced = cost.stage_costs(
            decoder_shapes(
                np.array([m.n_rows for m in plan.microbatches]),
                np.array([m.row_tokens for m in plan.microbatches]),
            )
        ).table[:, plan.stage]
        columns = {Forward: Cost.FORWARD_MS, Backward: Cost.BACKWARD_MS}
        passes = [step for step in plan.instructions if isinstance(step, Forward | Backward)]
        expected = [priced[step.microbatch, columns[type(step)]] for step in passes]
        assert times_of(plan) == pytest.approx(
            slowness[plan.replica, plan.stage] * np.array(expected)
        )
    if effort:
        fast, _, _, slowest = (sum(times_of(plan)) for plan in plans)
        assert 0.8 < fast / slowest < 1.1
        # Twice as long if the work were shared out evenly; 4/3 is what speeds 1 and 1/2 allow.
        ratio = (
            plans[0].prediction.iteration_ms
            / alike.make_plans(0, samples)[0].prediction.iteration_ms
        )
        assert 1.3 < ratio < 1.5


N_STAGES = 3
PADDED = (Layout.PADDED, Recompute.NONE)


def iteration(
    predicted_ms: FloatArray, factors: FloatArray | float, slowness: FloatArray | float = 1.0
) -> PassTimes:
    """An iteration in which passes took longer by factors, on two replicas."""
    taken_ms = np.ones((2, N_STAGES)) * slowness
    return PassTimes(predicted_ms, predicted_ms * factors, np.ones((2, N_STAGES)), taken_ms)


def learnt(*iterations: PassTimes) -> PassTimes:
    times = PassTimes.none(2, N_STAGES)
    for each in iterations:
        times = times.after(each)
    return times


def test_factors_are_found_by_way_stage_and_part() -> None:
    random = np.random.default_rng(1)
    truth = random.uniform(0.5, 2.0, shape_of(N_STAGES))
    predicted_ms = random.uniform(5, 10, (20, *shape_of(N_STAGES)))
    times = learnt(*(iteration(each, truth) for each in predicted_ms))
    # A tenth of a weight of 1 % of the stage in all nine modes, which is at most 4 times as much.
    assert times.factors == pytest.approx(truth, rel=0.2)
    alone = np.zeros(shape_of(N_STAGES))
    alone[PADDED] = 1.0
    times = learnt(*(iteration(each * alone, truth) for each in predicted_ms))
    assert times.factors[PADDED] == pytest.approx(truth[PADDED])


def test_the_latest_iterations_count_most_and_a_stall_for_little() -> None:
    passes = np.ones(shape_of(N_STAGES))
    times = learnt(*[iteration(passes, 1.0)] * 20, *[iteration(passes, 1.5)] * 10)
    assert times.factors == pytest.approx(np.full_like(passes, 1.45), abs=0.04)
    stalled = learnt(*[iteration(passes, 1.0)] * 20, iteration(passes, 1000.0))
    assert (stalled.factors < 1.7).all()


def test_replicas_are_compared_with_the_fastest_if_they_differ() -> None:
    passes = np.ones(shape_of(N_STAGES))
    alike = np.array([[1.0, 1.02, 1.0], [1.0, 1.0, 1.0]])
    assert learnt(iteration(passes, 1.0, alike)).corrections.slowness is None
    # The factors are of both replicas together, so that one is faster than expected.
    slowness = np.array([[0.8, 1.0, 1.0], [1.2, 1.0, 1.0]])
    found = learnt(iteration(passes, 2.0, slowness)).corrections
    assert found.slowness == pytest.approx(np.array([[1.0, 1.0, 1.0], [1.5, 1.0, 1.0]]))
    assert found.factors[*PADDED, :, 0] == pytest.approx([1.6, 2.0, 2.0])


def test_numbers_come_back_as_they_were_and_others_are_refused() -> None:
    random = np.random.default_rng(2)
    passes = random.uniform(1, 2, shape_of(N_STAGES))
    times = learnt(iteration(passes, 1 / 3, random.uniform(1, 2, (2, N_STAGES))))
    again = PassTimes.from_numbers(times.numbers, 2, N_STAGES)
    assert (again.factors == times.factors).all()
    assert (again.slowness == times.slowness).all()
    for wrong in (times.numbers[:-1], [*times.numbers[:-1], -1.0], [*times.numbers[:-1], np.nan]):
        with pytest.raises(InputError, match=r"not 174 finite numbers >= 0"):
            PassTimes.from_numbers(wrong, 2, N_STAGES)
