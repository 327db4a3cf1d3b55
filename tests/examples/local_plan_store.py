import threading

from dynapipe_hpc.store import plan_store as errors
from dynapipe_hpc.store.plan_store import PlannerFailedError, PlannerTurns

_Message = bytes | PlannerFailedError


class LocalPlanStore:
    """A plan store for ranks that are threads of one process, or for a single process."""

    def __init__(
        self, capacity: int, plan_bytes: int, n_ranks: int = 1, first_iteration: int = 0
    ) -> None:
        """Makes a store for `n_ranks` ranks and `capacity` plans ahead of up to `plan_bytes`."""
        self._turns = PlannerTurns(n_ranks, capacity, first_iteration)
        self._plan_bytes = plan_bytes
        self._changed = threading.Condition()
        self._waiting: dict[tuple[int, int], _Message] = {}  # by (iteration, rank)
        self._next_take = [first_iteration] * n_ranks

    @property
    def capacity(self) -> int:
        return self._turns.capacity

    def planner_of(self, iteration: int) -> int:
        return self._turns.planner_of(iteration)

    def put(self, iteration: int, rank: int, plan: bytes, timeout_s: float) -> None:
        if len(plan) > self._plan_bytes:
            raise errors.too_large_error(iteration, rank, len(plan), self._plan_bytes)
        self._publish(iteration, rank, plan, timeout_s)

    def fail(self, iteration: int, rank: int, reason: str, timeout_s: float) -> None:
        failure = errors.planner_failed_error(iteration, self.planner_of(iteration), reason)
        self._publish(iteration, rank, failure, timeout_s)

    def take(self, iteration: int, rank: int, timeout_s: float) -> bytes:
        with self._changed:
            message = self._receive(iteration, rank, timeout_s)
        if isinstance(message, PlannerFailedError):
            raise message
        return message

    def plans_ahead(self, rank: int) -> int:
        with self._changed:
            first = iteration = self._next_take[rank]
            while (iteration, rank) in self._waiting:
                iteration += 1
            return iteration - first

    def close(self) -> None:
        """Closes the store."""

    def _publish(self, iteration: int, rank: int, message: _Message, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: iteration - self._next_take[rank] < self.capacity, timeout_s
            ):
                raise errors.no_room_error(self._turns, iteration, rank, timeout_s)
            self._waiting[iteration, rank] = message
            self._changed.notify_all()

    def _receive(self, iteration: int, rank: int, timeout_s: float) -> _Message:
        if not self._changed.wait_for(lambda: (iteration, rank) in self._waiting, timeout_s):
            raise errors.no_plan_error(self._turns, iteration, rank, timeout_s)
        self._next_take[rank] += 1
        self._changed.notify_all()
        return self._waiting.pop((iteration, rank))
