import numpy as np
import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout, Recompute
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.pass_times import PassTimes, shape_of

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
