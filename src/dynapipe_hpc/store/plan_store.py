"""The plan store, through which plans reach the ranks, and whose turn it is to plan."""

from dataclasses import dataclass
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

    Contract: every plan is delivered once, in order and unchanged, starting with a given iteration;
    each planner puts its own plans, and each rank takes its own plans, in order, once each. `put`
    of iteration k waits until the rank has taken iteration k - capacity. After `timeout_s`, `put`
    and `take` raise an error with the reason, leave the store as it was, and may be tried again.
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
            PlanStoreError: The plan is larger than the store's entries.
        """
        ...

    def fail(self, iteration: int, rank: int, reason: str, timeout_s: float) -> None:
        """Publishes a planner's failure instead of a plan; otherwise like `put`."""
        ...

    def take(self, iteration: int, rank: int, timeout_s: float) -> bytes:
        """Takes the plan of a rank; waits for it.

        Raises:
            PlannerFailedError: The planner failed; the error has the reason.
            PlanStoreTimeoutError: There was no plan within `timeout_s`.
        """
        ...

    def plans_ahead(self, rank: int) -> int:
        """Number of plans of a rank that are ready to be taken."""
        ...

    def close(self) -> None:
        """Releases the store; called by all ranks together."""
        ...


@dataclass(frozen=True, slots=True)
class PlannerTurns:
    """Turns of the planning ranks: planner p plans iterations p, p + n_planners, ...

    Of more than `look_ahead` ranks, `look_ahead` are planners, spread evenly over the ranks and so
    over the nodes; else all ranks are. `first` is the iteration that is planned first.
    """

    n_ranks: int
    look_ahead: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.n_ranks < 1 or self.look_ahead < 1:
            raise ValueError(
                f"n_ranks ({self.n_ranks}) and look_ahead ({self.look_ahead}) must be >= 1"
            )

    @property
    def n_planners(self) -> int:
        return min(self.n_ranks, self.look_ahead)

    @property
    def planners(self) -> list[int]:
        """The ranks that plan, in the order of their turns."""
        return [self.planner_of(turn) for turn in range(self.n_planners)]

    @property
    def capacity(self) -> int:
        """Number of plans of one rank that may wait: `look_ahead`, rounded up to full turns."""
        return -(-self.look_ahead // self.n_planners) * self.n_planners

    def planner_of(self, iteration: int) -> int:
        return iteration % self.n_planners * self.n_ranks // self.n_planners

    def describe_before(self, iteration: int) -> str:
        """The iteration that the same planner plans before this one, if there is one."""
        before = iteration - self.n_planners
        return f"iteration {before}" if before >= self.first else "nothing"


def planner_failed_error(iteration: int, planner: int, reason: str) -> PlannerFailedError:
    return PlannerFailedError(f"rank {planner} could not plan iteration {iteration}: {reason}")


def too_large_error(iteration: int, rank: int, n_bytes: int, plan_bytes: int) -> PlanStoreError:
    return PlanStoreError(
        f"the plan of iteration {iteration} for rank {rank} has {n_bytes} bytes, but "
        f"store.plan_bytes is {plan_bytes}; raise it"
    )


def damaged_plan_error(iteration: int, rank: int, planner: int) -> PlanStoreError:
    return PlanStoreError(
        f"the plan of iteration {iteration} for rank {rank} from planner {planner} is damaged: its "
        "size, its place or its kind cannot be right"
    )


def no_room_error(
    turns: PlannerTurns, iteration: int, rank: int, timeout_s: float
) -> PlanStoreTimeoutError:
    planner, n_entries = turns.planner_of(iteration), turns.capacity // turns.n_planners
    return PlanStoreTimeoutError(
        f"no room for iteration {iteration} of rank {rank} at planner {planner} within "
        f"{timeout_s:g} s: all {n_entries} entries are full, and rank {rank} last took "
        f"{turns.describe_before(iteration - turns.capacity)} from there"
    )


def no_plan_error(
    turns: PlannerTurns, iteration: int, rank: int, timeout_s: float
) -> PlanStoreTimeoutError:
    planner = turns.planner_of(iteration)
    return PlanStoreTimeoutError(
        f"no plan for iteration {iteration} of rank {rank} from planner {planner} within "
        f"{timeout_s:g} s: planner {planner} last put {turns.describe_before(iteration)} for it"
    )
