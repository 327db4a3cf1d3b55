"""Time of a traced iteration by what ranks do in it, and traces in files."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.examples.example_plans import rows_of, spans_of
from tests.examples.example_runs import example_plans, example_traces, record, write_run
from tests.report.test_run_folder import timeline

from dynapipe_hpc.plan.instruction import (
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    StepOptimizer,
)
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction
from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import write_page
from dynapipe_hpc.report.run_folder import RunFolder, TraceFile
from dynapipe_hpc.report.table import text_table
from dynapipe_hpc.report.time_use import Use, rank_time
from dynapipe_hpc.report.timeline import BarKind, timeline_of
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


def test_measured_bars_are_the_instructions_in_the_order_of_the_plan() -> None:
    measured = timeline_of(example_plans(), example_traces()).measured
    assert [b.label for b in measured if b.rank == 1] == [
        "a0<0@0", "L0", "a0<!", "F0", "B0", "g0>0", "g0>!", "reduce", "step",
    ]  # fmt: skip
    assert [b.kind for b in measured if b.rank == 1] == [
        BarKind.TRANSFER, BarKind.LOAD, BarKind.WAIT, BarKind.FORWARD, BarKind.BACKWARD,
        BarKind.TRANSFER, BarKind.WAIT, BarKind.UPDATE, BarKind.UPDATE,
    ]  # fmt: skip


def test_activations_are_kept_from_a_forward_pass_to_the_last_of_its_backward_passes() -> None:
    """Two micro-batches, of which 10 and 7 bytes are kept; gradients of weights come last."""
    plan = example_plans()[1]
    steps: list[Instruction] = [Forward(0), Forward(1), BackwardInput(0), BackwardInput(1)]
    steps += [BackwardWeight(1), BackwardWeight(0), StepOptimizer()]
    plan = replace(
        plan,
        microbatches=plan.microbatches * 2,
        instructions=rows_of(steps),
        memory=MemoryPlan(100, 0, (10, 7), (0, 0), (0, 0)),
        prediction=Prediction(9.0, spans_of([(0.0, 1.0)] * 6)),
    )
    trace = replace(example_traces()[1], start_ms=(0.0,) * 7, end_ms=(0.0,) * 7)
    timeline = timeline_of([plan], [trace])
    assert [bar.kept_bytes for bar in timeline.planned] == [10, 17, 17, 17, 10, 0]
    assert [bar.kept_bytes for bar in timeline.measured] == [10, 17, 17, 17, 10, 0, None]


def written(path: Path, n_iterations: int) -> TraceFile:
    trace = TraceFile(path)
    for iteration in range(n_iterations):
        trace.add(timeline(iteration))
    return trace


def events(folder: Path) -> list[dict[str, Any]]:
    file = folder / "trace.json"
    file.unlink(missing_ok=True)
    written(file, 3).close()
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def test_every_rank_is_named_once(tmp_path: Path) -> None:
    named = [(e["pid"], e.get("tid"), e["name"]) for e in events(tmp_path) if e["ph"] == "M"]
    assert 0 < len(named) == len(set(named))


def test_arrows_lead_from_sends_to_the_receives_that_wait_for_them(tmp_path: Path) -> None:
    """Of both iterations, a0 from rank 0 to rank 1 and g0 back; both ranks begin each at 0."""
    by_id = defaultdict(list)
    for event in events(tmp_path):
        if event["ph"] in "sf":
            by_id[event["id"]].append(event)
    names = {e["tid"]: e["args"]["name"] for e in events(tmp_path) if e["name"] == "thread_name"}
    slices = [e for e in events(tmp_path) if e["ph"] == "X"]
    found = []
    for ends in by_id.values():
        assert [end["ph"] for end in ends] == ["s", "f"]
        for end in ends:
            assert names[end["tid"]] == "transfers and waits"
            (inside,) = (
                e["name"]
                for e in slices
                if e["tid"] == end["tid"] and e["ts"] <= end["ts"] < e["ts"] + e["dur"]
            )
            found.append((end["pid"], inside))
    assert found == [(2, "a0>1"), (4, "a0<!"), (4, "g0>0"), (2, "g0<!")] * (len(found) // 4)
    assert len(found) >= 4


def test_activations_are_counted_from_forward_to_the_end_of_backward(tmp_path: Path) -> None:
    """Rank 1 as measured: F0 begins at 24 ms, B0 ends at 40 ms, every iteration takes 72."""
    counted = [
        (e["ts"], e["args"]["bytes"]) for e in events(tmp_path) if e["ph"] == "C" and e["pid"] == 4
    ]
    assert counted[:4] == [(24e3, 10), (40e3, 0), (96e3, 10), (112e3, 0)]


def test_a_file_that_begins_anew_has_all_names(tmp_path: Path) -> None:
    trace = written(tmp_path / "trace.json", 1)
    trace.path.unlink()
    trace.add(timeline(1))
    trace.close()
    events = json.loads(trace.path.read_text())
    assert sum(event["name"] == "process_name" for event in events) == 4
