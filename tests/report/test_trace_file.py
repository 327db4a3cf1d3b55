"""trace.json, laid out as trace viewers expect."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.examples.example_runs import example_plans, example_traces

from dynapipe_hpc.report.run_folder import TraceFile
from dynapipe_hpc.report.timeline import IterationTimeline, timeline_of
from dynapipe_hpc.report.work_shares import PassShares, WorkShares

KINDS_OF_PASSES = {"forward", "backward", "update", "transfer", "wait"}


def example(iteration: int) -> IterationTimeline:
    shares = PassShares(WorkShares(0.9, 0.1, 0.0, 0.0), WorkShares(0.6, 0.1, 0.0, 0.3))
    return timeline_of(example_plans(iteration), example_traces(iteration), [[shares]] * 2)


def written(path: Path, n_iterations: int) -> TraceFile:
    trace = TraceFile(path)
    for iteration in range(n_iterations):
        trace.add(example(iteration))
    return trace


def as_lines(path: Path) -> list[str]:
    """Every line as an array."""
    lines = path.read_text().splitlines()[:-1]
    return [f"[{line.lstrip('[,')}]" for line in lines]


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
    trace.add(example(1))
    trace.close()
    events = json.loads(trace.path.read_text())
    assert sum(event["name"] == "process_name" for event in events) == 4
