"""Background planning of future iterations, and when it begins nothing."""

import platform
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.schedule.lower_bound import LongestTrip
from dynapipe_hpc.store.plan_store import PlanStore, PlanStoreTimeoutError

T = TypeVar("T")
_POLL_S = 0.5
_MAX_S = 0.05


class QuietPeriod:
    """Time from the last instruction of an iteration to the first of the next.

    Ranks compare plans and add up numbers then, and each waits for the slowest. A plan that is
    taken makes room for another, so that planning would begin just then, on every rank, and take
    the core and the interpreter lock. Threads whose work can wait call `wait` before they begin it.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._over.set()

    def begin(self) -> None:
        self._over.clear()

    def end(self) -> None:
        self._over.set()

    def wait(self) -> None:
        """Waits for the end of a quiet period, at most 50 ms.

        One that is longer has an evaluation or a checkpoint in it, and threads may as well work.
        """
        self._over.wait(_MAX_S)


class StoppedError(Exception):
    """Planning is no longer needed."""


@dataclass(frozen=True, slots=True)
class PlanningFacts:
    """CPU time of planning an iteration, and the trip of its longest sample.

    Another rank than the one that has planned it knows neither.
    """

    cpu_ms: float = 0.0
    trip: LongestTrip | None = None


class PlanAhead:
    """A thread that plans this rank's share of the iterations and stores the plans.

    A plan is made and encoded once, and stored for each of the ranks that execute it.

    Only the store's capacity limits the thread: it blocks in `put` while the store is full, and
    otherwise continues planning while the rank executes earlier iterations.

    An iteration that cannot be planned, or whose plans the store refuses, ends the planning:
    all ranks get the reason in place of a plan. Once some ranks have received their plan, this is
    impossible, as they would wait for the others while executing it; such an error leaves the
    thread uncaught, and `open_job` ends the job.
    """

    def __init__(
        self,
        make_plans: Callable[[int], tuple[Sequence[RankPlan], PlanningFacts]],
        store: PlanStore,
        iterations: Sequence[int],
        plan_of_rank: Sequence[int],
    ) -> None:
        """Prepares to plan `iterations`, in this order; every rank executes `plan_of_rank`.

        `make_plans` returns the plans of an iteration, and facts but for the time, taken here.
        """
        self._facts: dict[int, PlanningFacts] = {}
        self._make_plans = make_plans
        self._store = store
        self._iterations = iterations
        self._plan_of_rank = plan_of_rank
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._plan_all, name="planner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def take_facts(self, iteration: int) -> PlanningFacts:
        """Facts of planning an iteration, which is being executed; empty if another rank did.

        The thread writes them before it stores the first plan, so they are complete by now.
        """
        return self._facts.pop(iteration, PlanningFacts())

    def _plan_all(self) -> None:
        with suppress(StoppedError):
            for iteration in self._iterations:
                self._serve(iteration)

    def _serve(self, iteration: int) -> None:
        try:
            plans = self._plan(iteration)
            # The largest first: if the store refuses any plan, it is this one.
            first, *others = sorted(range(len(plans)), key=lambda rank: -len(plans[rank]))
            self._retry_until_room(self._store.put, iteration, first, plans[first])
        except StoppedError:
            raise
        except Exception as error:  # executors must not wait for the plan, whatever the error
            self._fail(iteration, f"{type(error).__name__} on {platform.node()}: {error}")
            raise StoppedError from error
        for rank in others:
            self._retry_until_room(self._store.put, iteration, rank, plans[rank])

    def _plan(self, iteration: int) -> list[bytes]:
        started_s = time.thread_time()
        made, facts = self._make_plans(iteration)
        plans = encode_plans(made)
        cpu_ms = 1e3 * (time.thread_time() - started_s)
        self._facts[iteration] = replace(facts, cpu_ms=cpu_ms)
        return [plans[plan] for plan in self._plan_of_rank]

    def _fail(self, iteration: int, reason: str) -> None:
        for rank in range(len(self._plan_of_rank)):
            self._retry_until_room(self._store.fail, iteration, rank, reason)

    def _retry_until_room(
        self, store: Callable[[int, int, T, float], None], iteration: int, rank: int, what: T
    ) -> None:
        while not self._stopped.is_set():
            with suppress(PlanStoreTimeoutError):
                return store(iteration, rank, what, _POLL_S)
        raise StoppedError
