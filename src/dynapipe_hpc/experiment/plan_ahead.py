"""Plans future iterations in the background."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from dynapipe_hpc.plan.codec import encode
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.store.plan_store import PlanStore, PlanStoreTimeoutError

_POLL_S = 0.5


class PlanAhead:
    """A thread that plans this rank's share of the iterations and stores the plans.

    The store's capacity is the only brake: the thread waits where `put` waits, and otherwise
    plans on while the rank executes earlier iterations.

    Attributes:
        planning_ms: Per iteration planned here, the processor time it took.
    """

    def __init__(
        self,
        make_plans: Callable[[int], Sequence[RankPlan]],
        store: PlanStore,
        iterations: Sequence[int],
        n_ranks: int,
    ) -> None:
        """Prepares to plan `iterations`, in this order, for all ranks."""
        self.planning_ms: dict[int, float] = {}
        self._make_plans = make_plans
        self._store = store
        self._iterations = iterations
        self._n_ranks = n_ranks
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._plan_all, name="planner", daemon=True)

    def __enter__(self) -> Self:
        """Starts planning."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops planning, after the iteration in hand."""
        self._stopped.set()
        self._thread.join()

    def _plan_all(self) -> None:
        for iteration in self._iterations:
            try:
                plans = self._plan(iteration)
            except Exception as error:  # whatever it is, executors must not wait for the plan
                self._publish(iteration, f"{type(error).__name__}: {error}")
                return
            if not self._publish(iteration, plans):
                return

    def _plan(self, iteration: int) -> list[bytes]:
        started_s = time.thread_time()
        plans = [encode(plan) for plan in self._make_plans(iteration)]
        self.planning_ms[iteration] = 1e3 * (time.thread_time() - started_s)
        return plans

    def _publish(self, iteration: int, plans: Sequence[bytes] | str) -> bool:
        """Stores plans, or the reason why there are none; False if told to stop meanwhile."""
        for rank in range(self._n_ranks):
            while not self._try_to_publish(iteration, rank, plans):
                if self._stopped.is_set():
                    return False
        return True

    def _try_to_publish(self, iteration: int, rank: int, plans: Sequence[bytes] | str) -> bool:
        try:
            if isinstance(plans, str):
                self._store.fail(iteration, rank, plans, _POLL_S)
            else:
                self._store.put(iteration, rank, plans[rank], _POLL_S)
        except PlanStoreTimeoutError:
            return False
        return True
