"""Plans of a rank as it takes them from the store, the next one before it is due."""

import time
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
        self._ahead: Future[TakenPlan] | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether the plan of the next iteration has been taken."""
        return self._ahead is not None

    def take(self, iteration: int) -> TakenPlan:
        """The plan of an iteration, for which this waits; the loader serves its global batch.

        Raises:
            PlanStoreError: There is none, see `PlanStore.take`.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead.result()
        return self._take(iteration, None)

    def prepare(self, iteration: int, is_busy: Callable[[], bool]) -> None:
        """Takes the plan of the next iteration if it is ready, and reads tokens while busy.

        Args:
            iteration: The next iteration; the host has executed the plan of the current one.
            is_busy: Whether the device is still executing the current iteration.
        """
        if not (n_ready := self._store.plans_ahead(self._rank)):
            return
        self._ahead = Future()
        try:
            taken = self._take(iteration, n_ready)
        except PlannerFailedError as error:
            self._ahead.set_exception(error)  # all ranks end together when the iteration is due
            return
        self._ahead.set_result(taken)
        # An error is met again, and reported, by the instruction that loads.
        with suppress(InputError, RunError):
            self._read_while(is_busy, taken.plan)

    def _read_while(self, is_busy: Callable[[], bool], plan: RankPlan) -> None:
        loads = (i for i in plan.instructions if isinstance(i, Load))
        while is_busy() and (load := next(loads, None)):
            self._worker.loader.read_ahead(plan.microbatches[load.microbatch])

    def _take(self, iteration: int, n_ready: int | None) -> TakenPlan:
        started_s = time.perf_counter()
        data = self._store.take(iteration, self._rank, self._timeout_s)
        waited_ms = 1e3 * (time.perf_counter() - started_s)
        samples = self._sampler.iteration(iteration)
        self._worker.loader.start_iteration(samples, iteration)
        # Looking costs as much as taking.
        plans_ahead = self._store.plans_ahead(self._rank) if n_ready is None else n_ready - 1
        return TakenPlan(data, decode(data), samples, waited_ms, plans_ahead)
