"""Background planning of future iterations."""

import platform
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self, TypeVar

from dynapipe_hpc.experiment.run.planner_activity import PlannerActivity
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.store.plan_store import PlanStore, PlanStoreTimeoutError

T = TypeVar("T")
_POLL_S = 0.5


class StoppedError(Exception):
    """Planning is no longer needed."""


class PlanAhead:
    """A thread that plans this rank's share of the iterations and stores the plans.

    A plan is made and encoded once, and stored for each of the ranks that execute it.

    Only the store's capacity limits the thread: it blocks in `put` while the store is full, and
    otherwise continues planning while the rank executes earlier iterations.

    An iteration that cannot be planned, or whose plans the store refuses, ends the planning:
    all ranks get the reason in place of a plan. Once some ranks have received their plan, this is
    impossible, as they would wait for the others while executing it; such an error leaves the
    thread uncaught, and `open_job` ends the job.

    Attributes:
        planning_ms: CPU time of planning, by iteration planned on this rank.
        activity: What the thread does, and when.
    """

    def __init__(
        self,
        make_plans: Callable[[int], Sequence[RankPlan]],
        store: PlanStore,
        iterations: Sequence[int],
        plan_of_rank: Sequence[int],
    ) -> None:
        """Prepares to plan `iterations`, in this order; every rank executes `plan_of_rank`."""
        self.planning_ms: dict[int, float] = {}
        self.activity = PlannerActivity()
        self._make_plans = make_plans
        self._store = store
        self._iterations = iterations
        self._plan_of_rank = plan_of_rank
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._plan_all, name="planner", daemon=True)

    def __enter__(self) -> Self:
        """Starts planning."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops planning after the current iteration."""
        self._stopped.set()
        self._thread.join()

    def _plan_all(self) -> None:
        with suppress(StoppedError):
            for iteration in self._iterations:
                self._serve(iteration)

    def _serve(self, iteration: int) -> None:
        try:
            with self.activity.doing(f"plan {iteration}"):
                plans = self._plan(iteration)
            # The largest first: if the store refuses any plan, it is this one.
            first, *others = sorted(range(len(plans)), key=lambda rank: -len(plans[rank]))
            with self.activity.doing(f"wait for room, {iteration}"):
                self._insist(self._store.put, iteration, first, plans[first])
        except StoppedError:
            raise
        except Exception as error:  # executors must not wait for the plan, whatever the error
            self._fail(iteration, f"{type(error).__name__} on {platform.node()}: {error}")
            raise StoppedError from error
        with self.activity.doing(f"store {iteration}"):
            for rank in others:
                self._insist(self._store.put, iteration, rank, plans[rank])

    def _plan(self, iteration: int) -> list[bytes]:
        started_s = time.thread_time()
        plans = encode_plans(self._make_plans(iteration))
        self.planning_ms[iteration] = 1e3 * (time.thread_time() - started_s)
        return [plans[plan] for plan in self._plan_of_rank]

    def _fail(self, iteration: int, reason: str) -> None:
        for rank in range(len(self._plan_of_rank)):
            self._insist(self._store.fail, iteration, rank, reason)

    def _insist(
        self, store: Callable[[int, int, T, float], None], iteration: int, rank: int, what: T
    ) -> None:
        """Retries until the store has room or planning is stopped."""
        while not self._stopped.is_set():
            with suppress(PlanStoreTimeoutError):
                return store(iteration, rank, what, _POLL_S)
        raise StoppedError
