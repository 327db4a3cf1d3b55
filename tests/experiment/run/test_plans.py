"""Plans of a rank: made as far ahead as the store and quiet periods allow, and taken early."""

import platform
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mpi4py import MPI
from tests.examples.equal_shares import rows_only
from tests.examples.example_runs import example_plans, iteration_result
from tests.examples.linear_cost import budget, linear_cost, samples_of
from tests.examples.local_plan_store import LocalPlanStore
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run import iteration as iteration_module
from dynapipe_hpc.experiment.run import rank as module_of_rank
from dynapipe_hpc.experiment.run.iteration import QuietPeriod
from dynapipe_hpc.experiment.run.plans import Plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import decode, encode_plans
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.rules import RULES
from dynapipe_hpc.store.plan_store import PlannerFailedError

RANK = 0


class Loader:
    """Notes what is asked of it; reading may fail."""

    def __init__(self) -> None:
        self.samples: Sequence[Sample] = ()
        self.read: list[MicroBatch] = []
        self.error: Exception | None = None

    def start_iteration(self, samples: Sequence[Sample], _: int) -> None:
        self.samples = samples

    def read_ahead(self, microbatch: MicroBatch) -> None:
        if self.error:
            raise self.error
        self.read.append(microbatch)


class Batches:
    """A sample per iteration, which has its number."""

    def iteration(self, k: int) -> list[Sample]:
        return [Sample(k, 1, 1)]


def plans_with(
    store: LocalPlanStore,
    n_iterations: int = 3,
    *,
    job: object = Job(MPI.COMM_SELF),
    loader: Loader | None = None,
    quiet_period: QuietPeriod | None = None,
    **experiment: object,
) -> Plans:
    """The plans of a rank in a job of its own, if nothing else is said."""
    known = {"config": tiny_experiment(), "sampler": Batches(), **experiment}
    return Plans(
        cast(Any, job),
        cast(Any, SimpleNamespace(**known)),
        range(n_iterations),
        cast(Any, loader),
        store=store,
        quiet_period=quiet_period or QuietPeriod(),
    )


def plans_of(store: LocalPlanStore, loader: Loader) -> Plans:
    return plans_with(store, loader=loader)


def stored(n: int) -> LocalPlanStore:
    store = LocalPlanStore(capacity=3, plan_bytes=100_000)
    for iteration in range(n):
        store.put(iteration, RANK, encode_plans(example_plans(iteration))[RANK], timeout_s=1)
    return store


def busy_for(n: int) -> Callable[[], bool]:
    """A device that is found busy `n` times."""
    looks = iter([True] * n)
    return lambda: next(looks, False)


def test_a_plan_that_is_ready_is_taken_before_it_is_due() -> None:
    store, loader = stored(2), Loader()
    plans = plans_of(store, loader)
    first = plans.take(0)
    assert (first.plan, first.samples, first.plans_ahead) == (
        example_plans(0)[0],
        [Sample(0, 1, 1)],
        1,
    )
    plans.prepare(1, busy_for(9))
    assert store.plans_ahead(RANK) == 0
    assert loader.samples == [Sample(1, 1, 1)]
    assert loader.read == list(example_plans(1)[0].microbatches)
    assert plans.take(1).plan == example_plans(1)[0]


def test_nothing_is_read_when_the_device_is_done() -> None:
    loader = Loader()
    plans = plans_of(stored(1), loader)
    plans.prepare(0, busy_for(0))
    assert loader.read == []
    assert plans.take(0).plan.iteration == 0


def test_a_planner_that_failed_is_told_of_when_its_iteration_is_due() -> None:
    store = stored(0)
    store.fail(0, RANK, "no plan", timeout_s=1)
    plans = plans_of(store, Loader())
    plans.prepare(0, busy_for(9))
    with pytest.raises(PlannerFailedError, match="no plan"):
        plans.take(0)


def test_tokens_that_cannot_be_read_are_told_of_by_the_instruction_that_loads_them() -> None:
    loader = Loader()
    loader.error = RunError("cannot read sample 4")
    plans = plans_of(stored(1), loader)
    plans.prepare(0, busy_for(9))
    assert plans.take(0).plan.iteration == 0


CLUSTER = Cluster(n_stages=2, device_memory_bytes=1_000_000)
CHOOSER = Baseline(budget(256), [RULES["1f1b"]], linear_cost(), CLUSTER)
PLANNER = Planner(CHOOSER, linear_cost(), CLUSTER, 8, rows_only(CLUSTER))

Batch = Callable[[int], list[Sample]]


def batch(_: int) -> list[Sample]:
    return samples_of([10, 20, 30])


def planning(
    store: LocalPlanStore, n_iterations: int, batch: Batch = batch, cluster: Cluster = CLUSTER
) -> Plans:
    """The plans of rank 0, which plans all iterations."""
    return plans_with(
        store,
        n_iterations,
        job=SimpleNamespace(rank=0, size=cluster.n_ranks),
        config=tiny_experiment().model_copy(update={"cluster": cluster}),
        sampler=SimpleNamespace(iteration=batch),
        planner=PLANNER,
    )


class OneRankPlans(LocalPlanStore):
    """A store whose first rank plans all iterations."""

    def planner_of(self, _: int) -> int:
        return 0


def test_every_rank_gets_every_plan_which_is_made_once_for_all_shards() -> None:
    made = []

    def count(iteration: int) -> list[Sample]:
        made.append(iteration)
        return batch(iteration)

    cluster = CLUSTER.model_copy(update={"n_shards": 3})
    store = OneRankPlans(capacity=2, plan_bytes=100_000, n_ranks=cluster.n_ranks)
    with planning(store, 5, count, cluster) as plans:
        for k in range(5):
            taken = [store.take(k, rank, timeout_s=10) for rank in range(cluster.n_ranks)]
            found = [(decode(plan).iteration, decode(plan).rank) for plan in taken]
            assert found == [(k, rank) for rank in (0, 0, 0, 1, 1, 1)]
            assert len(set(taken)) == 2
    assert made == list(range(5))
    assert [plans._planned[k][0] > 0 for k in range(5)] == [True] * 5


def test_a_failure_arrives_in_place_of_the_plan() -> None:
    def fail(iteration: int) -> list[Sample]:
        if iteration == 1:
            raise ValueError("sample 7 is too long")
        return batch(iteration)

    store = OneRankPlans(capacity=4, plan_bytes=100_000, n_ranks=2)
    with planning(store, 3, fail):
        store.take(0, 0, timeout_s=10)
        with pytest.raises(PlannerFailedError, match=f"on {platform.node()}: sample 7 is too"):
            store.take(1, 0, timeout_s=10)


def test_leaving_early_stops_a_planner_that_waits_for_room() -> None:
    with planning(OneRankPlans(capacity=1, plan_bytes=100_000, n_ranks=2), 100):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "planner"]


def test_a_plan_that_the_store_refuses_reaches_every_rank_as_a_failure() -> None:
    store = OneRankPlans(capacity=2, plan_bytes=100, n_ranks=2)
    with planning(store, 3):
        for rank in range(CLUSTER.n_ranks):
            with pytest.raises(PlannerFailedError, match=r"store\.plan_bytes"):
                store.take(0, rank, timeout_s=10)


class BreakingStore(OneRankPlans):
    """Serves one rank of an iteration and not the other."""

    def put(self, iteration: int, rank: int, plan: bytes, timeout_s: float) -> None:
        if self.plans_ahead(1 - rank):
            raise ConnectionError("the other rank is gone")
        super().put(iteration, rank, plan, timeout_s)


def test_a_failure_after_a_rank_was_served_ends_the_thread_as_an_uncaught_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uncaught: Queue[threading.ExceptHookArgs] = Queue()
    monkeypatch.setattr(threading, "excepthook", uncaught.put)
    store = BreakingStore(capacity=2, plan_bytes=100_000, n_ranks=2)
    with planning(store, 3):
        error = uncaught.get(timeout=10).exc_value
    assert isinstance(error, ConnectionError)
    assert store.plans_ahead(0) + store.plans_ahead(1) == 1


def has_ended(thread: Thread, within_s: float) -> bool:
    thread.join(within_s)
    return not thread.is_alive()


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> QuietPeriod:
    """A quiet period that has begun, and does not end by itself."""
    monkeypatch.setattr(iteration_module, "_MAX_QUIET_S", 30.0)
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
    plans = plans_with(stored(0), quiet_period=long, planner=planner)
    making = Thread(target=plans._plan, args=[7], daemon=True)
    making.start()
    assert not has_ended(making, 0.05)
    assert planned == []
    long.end()
    assert has_ended(making, 10)
    assert planned == [f"chosen for {Batches().iteration(7)}", "written 7"]


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
