"""Runs in numbers."""

import math

import pytest
from tests.examples.example_runs import record

from dynapipe_hpc.report.summary import largest_loss_difference, n_warm_up, read_recorded, summarise


@pytest.mark.parametrize(
    ("n_iterations", "expected"), [(1, 0), (3, 0), (4, 1), (11, 2), (12, 3), (1000, 3)]
)
def test_warm_up_is_three_iterations_or_a_quarter(n_iterations: int, expected: int) -> None:
    assert n_warm_up(n_iterations) == expected


def test_a_run_of_equal_iterations_has_their_numbers() -> None:
    summary = summarise("x", read_recorded([record(i) for i in range(5)]))
    assert summary.real_tokens_per_s == 2000
    assert summary.padding_efficiency == 0.8
    assert summary.time_error == pytest.approx(0.1)
    assert summary.peak_error == pytest.approx(0.25)
    assert (summary.planning_ms, summary.plans_ahead) == (20, 2)


def test_the_warm_up_counts_only_in_the_totals() -> None:
    slow = [record(i, measured_ms=5000.0, waited_ms=70.0, plans_ahead=0) for i in range(3)]
    steady = [record(i, waited_ms=1.0) for i in range(3, 12)]
    summary = summarise("x", read_recorded(slow + steady))
    assert (summary.n_iterations, summary.n_steady) == (12, 9)
    assert summary.real_tokens_per_s == 2000
    assert (summary.waited_ms, summary.steady_waited_ms) == (219, 9)
    assert summary.plans_ahead == 2


def test_one_slow_iteration_does_not_move_the_median() -> None:
    records = [record(i, measured_ms=9999.0 if i == 7 else 500.0) for i in range(12)]
    assert summarise("x", read_recorded(records)).real_tokens_per_s == 2000


def test_the_end_with_nothing_left_to_plan_does_not_count_as_falling_behind() -> None:
    records = [record(i, plans_ahead=min(4, 19 - i)) for i in range(20)]
    assert summarise("x", read_recorded(records)).plans_ahead == 4


def test_the_error_of_a_prediction_has_no_sign() -> None:
    records = [record(0, predicted_ms=400.0), record(1, predicted_ms=600.0)]
    assert summarise("x", read_recorded(records)).time_error == pytest.approx(0.2)


def test_memory_that_was_not_measured_has_no_error() -> None:
    assert math.isnan(summarise("x", read_recorded([record(measured_peak_bytes=0)])).peak_error)


def test_loss_is_compared_at_equal_iterations() -> None:
    reference = [record(0, loss=4.0), record(1, loss=2.0)]
    run = [record(0, loss=4.0), record(1, loss=2.1), record(2, loss=1000.0)]
    assert largest_loss_difference(run, reference) == pytest.approx(0.05)


def test_runs_without_a_common_iteration_have_no_loss_difference() -> None:
    assert math.isnan(largest_loss_difference([record(0)], [record(1)]))


def test_a_loss_that_is_no_number_is_no_agreement() -> None:
    run = [record(0), record(1, loss=math.nan)]
    assert math.isnan(largest_loss_difference(run, [record(0), record(1)]))
