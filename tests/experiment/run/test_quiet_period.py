import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.examples.example_runs import example_plans, iteration_result
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run import iteration as module
from dynapipe_hpc.experiment.run import rank as module_of_rank
from dynapipe_hpc.experiment.run.iteration import QuietPeriod
from dynapipe_hpc.experiment.run.plans import Plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import RunLock


def has_ended(thread: Thread, within_s: float) -> bool:
    thread.join(within_s)
    return not thread.is_alive()


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> QuietPeriod:
    """A quiet period that has begun, and does not end by itself."""
    monkeypatch.setattr(module, "_MAX_QUIET_S", 30.0)
    quiet_period = QuietPeriod()
    quiet_period.begin()
    return quiet_period


def test_threads_wait_for_the_end_of_a_quiet_period(long: QuietPeriod) -> None:
    QuietPeriod().wait()  # there is none yet
    waiting = Thread(target=long.wait, daemon=True)
    waiting.start()
    assert not has_ended(waiting, 0.05)
    long.end()
    assert has_ended(waiting, 10)


def test_threads_do_not_wait_long() -> None:
    quiet_period = QuietPeriod()
    quiet_period.begin()
    started_s = time.perf_counter()
    quiet_period.wait()
    assert 0.04 < time.perf_counter() - started_s < 2


def test_an_iteration_is_written_when_the_next_begins(tmp_path: Path, long: QuietPeriod) -> None:
    lock = RunLock(tmp_path / "run")
    lock.acquire()
    log = RunLog(
        tiny_experiment(),
        Placement((2, 2)),
        tmp_path / "run",
        machine={},
        n_done=0,
        lock=lock,
        quiet_period=long,
    )
    log.add(iteration_result(0), (), (), 500.0)
    time.sleep(0.02)
    lines = tmp_path / "run" / "iterations.jsonl"
    assert len(lines.read_text().splitlines()) == 0
    long.end()
    log.flush()
    assert len(lines.read_text().splitlines()) == 1
    log.close()
    lock.release()


def plans_of(experiment: Experiment, quiet_period: QuietPeriod) -> Plans:
    return Plans(
        cast(Any, SimpleNamespace(rank=0, size=1)),
        experiment,
        range(1),
        cast(Any, None),
        store=cast(Any, SimpleNamespace(planner_of=lambda _: 0)),
        quiet_period=quiet_period,
    )


def test_no_plan_is_begun_in_a_quiet_period(long: QuietPeriod) -> None:
    planned: list[str] = []

    def write(iteration: int, _: object) -> object:
        planned.append(f"written {iteration}")
        return example_plans(iteration)

    planner = SimpleNamespace(
        choose=lambda samples: planned.append(f"chosen for {samples}"),
        write=write,
        longest_trip=lambda *_: None,
    )
    experiment = SimpleNamespace(config=tiny_experiment(), sampler=Samples(), planner=planner)
    plans = plans_of(cast(Any, experiment), long)
    making = Thread(target=plans._plan, args=[7], daemon=True)
    making.start()
    assert not has_ended(making, 0.05)
    assert planned == []
    long.end()
    assert has_ended(making, 10)
    assert planned == ["chosen for samples of 7", "written 7"]


class Samples:
    def iteration(self, iteration: int) -> str:
        return f"samples of {iteration}"


@pytest.mark.parametrize(
    ("is_busy", "is_ahead", "seen"),
    [
        (False, True, ["launch: over", "prepare: begun", "finish: begun", "end: begun"]),
        (True, True, ["launch: over", "prepare: over", "finish: over", "end: begun"]),
        (False, False, ["launch: over", "prepare: begun", "finish: begun", "end: over"]),
    ],
    ids=["host", "device", "no plan ahead"],
)
def test_a_quiet_period_begins_when_the_device_is_done(
    is_busy: bool, is_ahead: bool, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with the first instruction, or if this rank has to wait for a planner."""
    quiet_period, found = QuietPeriod(), list[str]()
    quiet_period.begin()

    def note(what: str) -> None:
        found.append(f"{what}: {'over' if quiet_period._over.is_set() else 'begun'}")

    def launch(*_: object, **__: object) -> object:
        note("launch")
        return SimpleNamespace(is_busy=is_busy, finish=lambda: note("finish"))

    monkeypatch.setattr(module_of_rank, "launch_plan", launch)
    plans = SimpleNamespace(
        is_ahead=is_ahead,
        prepare=lambda *_: note("prepare"),
        quiet_period=quiet_period,
        iterations=range(2),
    )
    rank: Any = SimpleNamespace(
        stage=None, clock=None, channels=SimpleNamespace(transport=None), progress=None
    )
    Rank._execute(rank, cast(Any, SimpleNamespace(iteration=0)), cast(Any, plans))
    note("end")
    assert found == seen
