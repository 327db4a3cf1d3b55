"""Carries plans from the rank that made them to the ranks that execute them."""

from typing import Protocol

from dynapipe_hpc.data.errors import RunError


class PlanStoreError(RunError):
    """A plan could not be stored or delivered."""


class PlanStoreTimeoutError(PlanStoreError):
    """Waited too long for a plan, or for room for one."""


class PlannerFailedError(PlanStoreError):
    """The planner of an iteration failed; its message came in place of the plan."""


class PlanStore(Protocol):
    """A bounded queue of plan bytes per executing rank, in order of iterations.

    Contract: every plan is delivered once, in order, unchanged, starting with a given iteration;
    `put` of iteration k waits until the rank has taken iteration k - capacity; both give up
    with a reason after `timeout_s`, may then be tried again, and leave the store as it was.
    """

    @property
    def capacity(self) -> int:
        """Plans of one rank that may wait to be taken: the look-ahead, rounded up."""
        ...

    def planner_of(self, iteration: int) -> int:
        """The rank that plans an iteration and calls `put` or `fail` for it."""
        ...

    def put(self, iteration: int, rank: int, plan: bytes, timeout_s: float) -> None:
        """Stores the plan of a rank; waits for room.

        Raises:
            PlanStoreTimeoutError: No room within `timeout_s`.
            PlanStoreError: The plan is larger than the store's slots, or out of order (a
                planner puts its own iterations in order, each once), or the caller is not
                the iteration's planner.
        """
        ...

    def fail(self, iteration: int, rank: int, reason: str, timeout_s: float) -> None:
        """Publishes a planner's failure in place of a plan; otherwise as `put`."""
        ...

    def take(self, iteration: int, rank: int, timeout_s: float) -> bytes:
        """Takes the plan of a rank; waits for it.

        Raises:
            PlannerFailedError: The planner failed, with its reason.
            PlanStoreTimeoutError: No plan within `timeout_s`.
            PlanStoreError: Not the rank's next iteration.
        """
        ...

    def plans_ahead(self, rank: int) -> int:
        """Plans of a rank that are ready to be taken."""
        ...

    def close(self) -> None:
        """Releases the store; all ranks together."""
        ...
