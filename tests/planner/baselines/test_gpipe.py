"""GPipe in pictures."""

from textwrap import dedent

import numpy as np
import pytest
from tests.examples.stage_costs import equal_stages, no_limit

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.baselines.gpipe import gpipe
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError
from dynapipe_hpc.planner.schedule.simulate import simulate


def test_every_stage_runs_all_forward_passes_first() -> None:
    costs = equal_stages([1] * 4, n_stages=3)
    assert str(gpipe(costs, no_limit(costs))) == dedent("""\
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 F3 B0 B1 B2 B3""")


@pytest.mark.parametrize(("n_microbatches", "n_stages"), [(1, 1), (4, 3), (8, 4), (3, 6)])
def test_equal_micro_batches_take_as_long_as_there_are_passes_and_stages_to_fill(
    n_microbatches: int, n_stages: int
) -> None:
    costs = equal_stages([1] * n_microbatches, n_stages)
    schedule = gpipe(costs, no_limit(costs))
    timeline = simulate(schedule, costs, Link(latency_ms=0), np.zeros(n_stages))
    assert timeline.makespan_ms == 3 * (n_microbatches + n_stages - 1)


def test_every_stage_keeps_all_micro_batches_and_the_limit_may_be_reached() -> None:
    costs = equal_stages([1] * 4, n_stages=3, stored_bytes=[1, 2, 3, 4])
    schedule = gpipe(costs, np.full(3, 10.0))
    assert simulate(schedule, costs, Link(), np.zeros(3)).peak_bytes.tolist() == [10, 10, 10]


def test_a_stage_that_would_exceed_its_limit_is_named() -> None:
    costs = equal_stages([1] * 4, n_stages=3)
    message = "GPipe needs 4 bytes of activations on stage 1, where 3 are free .* add 'cyclic'"
    with pytest.raises(InfeasibleScheduleError, match=message):
        gpipe(costs, np.array([4.0, 3.0, 4.0]))
