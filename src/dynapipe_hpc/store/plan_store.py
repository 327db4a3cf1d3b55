"""Plan store: carries plans from the rank that made them to the ranks that execute them."""

from typing import Protocol

from dynapipe_hpc.data.errors import RunError


class PlanStoreError(RunError):
    """A plan could not be stored or delivered."""


class PlanStoreTimeoutError(PlanStoreError):
    """A wait for a plan, or for room for one, timed out."""


class PlannerFailedError(PlanStoreError):
    """The planner of an iteration failed; its error message came instead of the plan."""


class PlanStore(Protocol):
    """A bounded queue of plan bytes per executing rank, in order of iterations.

    Contract: every plan is delivered once, in order and unchanged, starting with a given
    iteration. `put` of iteration k waits until the rank has taken iteration k - capacity. After
    `timeout_s`, `put` and `take` raise an error with the reason, leave the store as it was, and
    may be tried again.
    """

    @property
    def capacity(self) -> int:
        """Number of plans of one rank that may wait to be taken: the look-ahead, rounded up."""
        ...

    def planner_of(self, iteration: int) -> int:
        """The rank that plans an iteration and calls `put` or `fail` for it."""
        ...

    def put(self, iteration: int, rank: int, plan: bytes, timeout_s: float) -> None:
        """Stores the plan of a rank; waits for room.

        Raises:
            PlanStoreTimeoutError: There was no room within `timeout_s`.
            PlanStoreError: The plan is larger than the store's entries, or out of order (a
                planner puts its own iterations in order, each once), or the caller is not
                the iteration's planner.
        """
        ...

    def fail(self, iteration: int, rank: int, reason: str, timeout_s: float) -> None:
        """Publishes a planner's failure instead of a plan; otherwise as `put`."""
        ...

    def take(self, iteration: int, rank: int, timeout_s: float) -> bytes:
        """Takes the plan of a rank; waits for it.

        Raises:
            PlannerFailedError: The planner failed, with its reason.
            PlanStoreTimeoutError: There was no plan within `timeout_s`.
            PlanStoreError: The iteration is not the rank's next one.
        """
        ...

    def plans_ahead(self, rank: int) -> int:
        """Number of plans of a rank that are ready to be taken."""
        ...

    def close(self) -> None:
        """Releases the store; called by all ranks together."""
        ...
