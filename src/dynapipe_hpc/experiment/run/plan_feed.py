"""Plans of a rank as it takes them from the store, the next one before it is due."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.experiment.rank.assemble import Worker
from dynapipe_hpc.experiment.run.executed_iteration import TakenPlan
from dynapipe_hpc.plan.codec import decode
from dynapipe_hpc.plan.instruction import Load
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.store.plan_store import PlannerFailedError, PlanStore


class PlanFeed:
    """Plans of a rank, one iteration after the other.

    While the device is still busy with one iteration, the host prepares the next: it takes the plan
    if that is ready, and reads tokens. So the device does not wait for any of it.
    """

    def __init__(
        self,
        store: PlanStore,
        rank: int,
        sampler: TokenBudgetSampler,
        worker: Worker,
        *,
        timeout_s: float,
    ) -> None:
        """Feeds `worker` with the plans of `rank`, for each of which it waits up to `timeout_s`."""
        self._store, self._rank, self._sampler = store, rank, sampler
        self._worker, self._timeout_s = worker, timeout_s
        self._ahead: deque[Future[TakenPlan]] = deque()
        self._served: TakenPlan | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether the plan of the next iteration has been taken."""
        return bool(self._ahead)

    def take(self, iteration: int) -> TakenPlan:
        """The plan of an iteration, for which this waits; the loader serves its global batch.

        Raises:
            PlanStoreError: There is none, see `PlanStore.take`.
        """
        taken = self._ahead.popleft().result() if self._ahead else self._take(iteration, None)
        self.serve(taken)
        return taken

    def take_ahead(self, iterations: range) -> list[TakenPlan]:
        """Plans of the first iterations, for which this waits, and which `take` returns again.

        They end with the first that could not be made, which is an error when it is due.
        """
        for iteration in iterations:
            if not self._put_ahead(iteration, None):
                break
        return [ahead.result() for ahead in self._ahead if ahead.exception() is None]

    def serve(self, taken: TakenPlan) -> None:
        """Lets the loader serve the global batch of a plan."""
        if taken is not self._served:
            self._worker.loader.start_iteration(taken.samples, taken.plan.iteration)
            self._served = taken

    def prepare(self, iteration: int, is_busy: Callable[[], bool]) -> None:
        """Takes the plan of the next iteration if it is ready, and reads tokens while busy.

        Args:
            iteration: The next iteration; the host has executed the plan of the current one.
            is_busy: Whether the device is still executing the current iteration.
        """
        if not self._ahead:
            if not (n_ready := self._store.plans_ahead(self._rank)):
                return
            self._put_ahead(iteration, n_ready)
        if self._ahead[0].exception() is not None:
            return
        taken = self._ahead[0].result()
        self.serve(taken)
        # An error is met again, and reported, by the instruction that loads.
        with suppress(InputError, RunError):
            self._read_while(is_busy, taken.plan)

    def _put_ahead(self, iteration: int, n_ready: int | None) -> bool:
        """Takes a plan before it is due, or the error in its place; whether it is a plan."""
        ahead = Future[TakenPlan]()
        self._ahead.append(ahead)
        try:
            ahead.set_result(self._take(iteration, n_ready))
        except PlannerFailedError as error:
            ahead.set_exception(error)  # all ranks end together when the iteration is due
            return False
        return True

    def _read_while(self, is_busy: Callable[[], bool], plan: RankPlan) -> None:
        loads = (i for i in plan.instructions if isinstance(i, Load))
        while is_busy() and (load := next(loads, None)):
            self._worker.loader.read_ahead(plan.microbatches[load.microbatch])

    def _take(self, iteration: int, n_ready: int | None) -> TakenPlan:
        started_s = time.perf_counter()
        data = self._store.take(iteration, self._rank, self._timeout_s)
        waited_ms = 1e3 * (time.perf_counter() - started_s)
        samples = self._sampler.iteration(iteration)
        # Looking costs as much as taking.
        plans_ahead = self._store.plans_ahead(self._rank) if n_ready is None else n_ready - 1
        return TakenPlan(data, decode(data), samples, waited_ms, plans_ahead)
