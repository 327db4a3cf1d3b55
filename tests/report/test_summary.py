"""Runs in numbers."""

from collections.abc import Iterator

import pytest
from tests.examples.example_runs import record

import dynapipe_hpc.report.comparison as summary
from dynapipe_hpc.report.comparison import n_warm_up, summarise
from dynapipe_hpc.report.records import IterationRecord


@pytest.mark.parametrize(
    ("n_iterations", "expected"), [(1, 0), (3, 0), (4, 1), (11, 2), (12, 3), (1000, 3)]
)
def test_warm_up_is_three_iterations_or_a_quarter(n_iterations: int, expected: int) -> None:
    assert n_warm_up(n_iterations) == expected


def test_a_run_of_equal_iterations_has_their_numbers() -> None:
    found = summarise("x", [record(i) for i in range(5)])
    assert found.real_tokens_per_s == 2000
    assert found.padding_efficiency == 0.8
    assert found.time_error == pytest.approx(0.1)
    assert found.peak_error == pytest.approx(0.25)
    assert found.typical(lambda r: r.planning_ms) == 20


def test_the_warm_up_counts_only_in_the_totals() -> None:
    slow = [record(i, measured_ms=5000.0, waited_ms=70.0, plans_ahead=0) for i in range(3)]
    steady = [record(i, waited_ms=1.0) for i in range(3, 12)]
    found = summarise("x", slow + steady)
    assert (found.totals.n_iterations, found.steady.n_iterations) == (12, 9)
    assert found.real_tokens_per_s == 2000
    assert (found.totals.waited_ms, found.steady.waited_ms) == (219, 9)
    assert found.typical(lambda r: r.plans_ahead) == 2


MOST = 100
N_ITERATIONS = 1001


@pytest.fixture
def _few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MAX_KEPT", MOST)


def long_run(first: int = 0) -> Iterator[IterationRecord]:
    for k in range(first, N_ITERATIONS):
        yield record(k, waited_ms=float(k), measured_peak_bytes=10**9 if k == 777 else 1)


@pytest.mark.usefixtures("_few_are_kept")
def test_of_a_long_run_evenly_spaced_iterations_are_kept() -> None:
    found = summarise("x", long_run())
    assert [each.iteration for each in found.kept] == list(range(0, N_ITERATIONS, 16))
    assert (found.first.iteration, found.last.iteration) == (0, N_ITERATIONS - 1)


@pytest.mark.usefixtures("_few_are_kept")
def test_totals_are_of_all_iterations() -> None:
    found = summarise("x", long_run())
    assert (found.totals.n_iterations, found.steady.n_iterations) == (N_ITERATIONS, 998)
    assert found.totals.waited_ms == sum(range(N_ITERATIONS))
    assert found.steady.measured_peak_bytes == 10**9
    assert found.ends_s[-1] == pytest.approx(0.5 * (found.kept[-1].iteration + 1))
