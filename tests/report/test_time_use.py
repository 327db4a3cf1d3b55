"""Uses of time, in a run folder made by hand with known answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.examples.example_runs import example_plans, example_traces, record, write_run

from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import write_page
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.table import text_table
from dynapipe_hpc.report.time_use import Use, rank_time
from dynapipe_hpc.report.timeline import timeline_of
from dynapipe_hpc.report.work_shares import PassShares, WorkShares

CONFIG = "[cluster]\nn_stages = 2\n[planner.batch]\nrule = '{rule}'\n"
SHARES = PassShares(WorkShares(0.5, 0.25, 0.25, 0.0), WorkShares(0.375, 0.1875, 0.1875, 0.25))
# The instructions of both ranks, see GRID, with the end of each in ms.
ENDS_MS = (
    # L0   F0    a0>1  g0<1  a0>!  g0<!  B0    reduce step
    (1.0, 21.0, 22.0, 23.0, 25.0, 70.0, 90.0, 91.0, 99.0),
    # a0<0  L0   a0<!  F0    B0    g0>0  g0>!  reduce step
    (1.0, 2.0, 24.0, 44.0, 64.0, 65.0, 66.0, 67.0, 97.0),
)


def traces(iteration: int):  # type: ignore[no-untyped-def]
    return [
        replace(trace, start_ms=(0.0, *ends_ms[:-1]), end_ms=ends_ms)
        for trace, ends_ms in zip(example_traces(iteration), ENDS_MS, strict=True)
    ]


def hand_made(path: Path, rule: str, n_iterations: int = 1, **changes: float) -> RunFolder:
    """Iterations of 105 ms, of which 4 ms are spent waiting for the plan."""
    folder = RunFolder.create(path, CONFIG.format(rule=rule), {})
    for k in range(n_iterations):
        folder.add(record(k, **{"measured_ms": 105.0, "waited_ms": 4.0, **changes}))
        folder.add_trace(example_plans(k), traces(k), [[SHARES]] * 2)
    return folder


# Of both ranks together. Rank 0 waits for g0, which is sent from 64 ms on, from 25 to 70 ms; rank 1
# for a0, sent from 21 ms on, from 2 to 24 ms, and at the step from 67 ms until rank 0 comes at 91.
# Rank 1 ends 2 ms before rank 0.
KNOWN_MS = {
    Use.REAL: 0.5 * 40 + 0.375 * 40,
    Use.PADDING: 0.25 * 40 + 0.1875 * 40,
    Use.ACROSS_DOCUMENTS: 0.25 * 40 + 0.1875 * 40,
    Use.RECOMPUTED: 0.25 * 40,
    Use.BUBBLE: (64 - 25) + (21 - 2) + (91 - 67) + 2,
    Use.TRANSFER: (1 + 1 + 2 + 6) + (1 + 3 + 1 + 1),
    Use.PLAN: 2 * 4,
    Use.UPDATE: (1 + 8) + (1 + 6),
    Use.REST: (1 + 2) + (1 + 2),
}


def test_every_millisecond_of_a_hand_made_run_is_where_it_belongs(tmp_path: Path) -> None:
    (found,) = compare([hand_made(tmp_path / "x", "dynamic")]).times
    assert found is not None
    assert found.times_ms == pytest.approx({use: both / 2 for use, both in KNOWN_MS.items()})
    assert found.iteration_ms == pytest.approx(105)
    assert sum(found.share(use) for use in Use) == pytest.approx(1)


def test_replicas_wait_for_their_own_stage_in_the_reduction_and_for_all_in_the_step() -> None:
    plans = [replace(plan, rank=r) for r, plan in enumerate(example_plans() * 2)]
    late = [
        replace(
            trace,
            rank=rank,
            start_ms=tuple(t + 10 * (rank == 2) for t in trace.start_ms),
            end_ms=tuple(t + 10 * (rank == 2) for t in trace.end_ms),
        )
        for rank, trace in enumerate(example_traces() * 2)
    ]
    timeline = timeline_of(plans, late, [[SHARES]] * 4)
    of_two, of_one = (rank_time(timeline, 82.0, 0.0, n_stages) for n_stages in (2, 1))
    assert of_two is not None
    assert of_one is not None
    # Each 8 ms long: of the others, rank 0 waits through its reduction, and all through the step.
    assert of_two[Use.UPDATE] == pytest.approx((8 + 8 + 8 + 8) / 4)
    assert of_one[Use.UPDATE] == pytest.approx((8 + 8) / 4)


def test_only_traced_iterations_after_the_warm_up_count(tmp_path: Path) -> None:
    folder = hand_made(tmp_path / "x", "dynamic", n_iterations=8)
    (found,) = compare([folder]).times
    assert found is not None
    assert found.n_iterations == 6
    (of_first,) = compare([write_traced_first(tmp_path / "y")]).times
    assert of_first is not None
    assert of_first.n_iterations == 1
    assert (found.in_warm_up, of_first.in_warm_up) == (False, True)


def write_traced_first(path: Path) -> RunFolder:
    folder = hand_made(path, "dynamic")
    for k in range(1, 8):
        folder.add(record(k))
    return folder


def test_a_trace_that_does_not_tell_what_passes_computed_has_no_bar(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", 3, n_traced=3)
    new = hand_made(tmp_path / "new", "dynamic")
    comparison = compare([old, new])
    assert comparison.times[0] is None
    (line,) = (line for line in text_table(comparison).splitlines() if "padding  " in line[:12])
    assert line.split() == ["padding", "–", "8.3", "%"]
    write_page([old], compare([old]), tmp_path / "r.html")
    assert "Where the time of ranks went" not in (tmp_path / "r.html").read_text()


def test_bars_of_all_runs_have_one_scale(tmp_path: Path) -> None:
    runs = [
        hand_made(tmp_path / "a", "token_budget", measured_ms=210.0),
        hand_made(tmp_path / "b", "dynamic"),
    ]
    write_page(runs, compare(runs), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    # 17.5 ms of 210 and of 105, in percent of the longest bar.
    assert page.count('class="use-real" style="width: 8.333%"') == 2
    assert 'title="real work: 17.5 ms per iteration, 16.7 %"' in page
    assert 'title="real work: 17.5 ms per iteration, 8.3 %"' in page
