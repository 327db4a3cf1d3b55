"""Long runs in little memory."""

from collections.abc import Iterator

import pytest
from tests.examples.example_runs import record

from dynapipe_hpc.report import summary
from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.summary import read_recorded

MOST = 100
N_ITERATIONS = 1001


@pytest.fixture(autouse=True)
def _few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MAX_KEPT", MOST)


def long_run(first: int = 0) -> Iterator[IterationRecord]:
    for k in range(first, N_ITERATIONS):
        yield record(k, waited_ms=float(k), measured_peak_bytes=10**9 if k == 777 else 1)


def test_a_run_that_is_not_long_is_kept_whole() -> None:
    records = [record(k) for k in range(MOST)]
    assert list(read_recorded(records).kept) == records


def test_of_a_long_run_evenly_spaced_iterations_are_kept() -> None:
    found = read_recorded(long_run())
    assert [each.iteration for each in found.kept] == list(range(0, N_ITERATIONS, 16))
    assert (found.first.iteration, found.last.iteration) == (0, N_ITERATIONS - 1)


def test_those_kept_of_two_long_runs_are_the_same() -> None:
    kept = [{each.iteration for each in read_recorded(long_run(first)).kept} for first in (0, 7)]
    assert kept[0] - {0} == kept[1] - {7}  # the first of a run is always kept


def test_totals_are_of_all_iterations() -> None:
    found = read_recorded(long_run())
    assert (found.totals.n_iterations, found.steady.n_iterations) == (N_ITERATIONS, 998)
    assert found.totals.waited_ms == sum(range(N_ITERATIONS))
    assert found.steady.measured_peak_bytes == 10**9
    assert found.ends_s[-1] == pytest.approx(0.5 * (found.kept[-1].iteration + 1))
