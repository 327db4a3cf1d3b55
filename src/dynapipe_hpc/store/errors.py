"""Errors of plan stores, with the same messages from every store."""

from dynapipe_hpc.store.plan_store import (
    PlannerFailedError,
    PlannerTurns,
    PlanStoreError,
    PlanStoreTimeoutError,
)


def order_error(verb: str, iteration: int, rank: int, expected: int) -> PlanStoreError:
    """Error of a call that repeats or skips an iteration; `verb` is "put" or "take"."""
    return PlanStoreError(
        f"cannot {verb} iteration {iteration} of rank {rank}: iteration {expected} is next"
    )


def planner_failed_error(iteration: int, planner: int, reason: str) -> PlannerFailedError:
    """Error of a take of an iteration that could not be planned."""
    return PlannerFailedError(f"rank {planner} could not plan iteration {iteration}: {reason}")


def unknown_rank_error(rank: int, n_ranks: int) -> PlanStoreError:
    """Error of a rank outside the job."""
    return PlanStoreError(f"there is no rank {rank}; the store serves ranks 0 to {n_ranks - 1}")


def not_the_planner_error(iteration: int, rank: int, planner: int) -> PlanStoreError:
    """Error of a put by a rank that does not plan the iteration."""
    return PlanStoreError(
        f"rank {rank} cannot put iteration {iteration}: rank {planner} is its planner"
    )


def not_the_reader_error(rank: int, caller: int) -> PlanStoreError:
    """Error of a rank that asks for the plans of another."""
    return PlanStoreError(
        f"rank {caller} cannot take plans of rank {rank}; every rank takes its own"
    )


def too_large_error(iteration: int, rank: int, n_bytes: int, plan_bytes: int) -> PlanStoreError:
    """Error of a plan that exceeds store.plan_bytes."""
    return PlanStoreError(
        f"the plan of iteration {iteration} for rank {rank} has {n_bytes} bytes, but "
        f"store.plan_bytes is {plan_bytes}; raise it"
    )


def damaged_plan_error(iteration: int, rank: int, planner: int) -> PlanStoreError:
    """Error of a message that no planner can have written."""
    return PlanStoreError(
        f"the plan of iteration {iteration} for rank {rank} from planner {planner} is damaged: its "
        "size, its place or its kind cannot be right"
    )


def closed_error() -> PlanStoreError:
    """Error of any use after `close`."""
    return PlanStoreError("the plan store is closed")


def no_room_error(
    turns: PlannerTurns, iteration: int, rank: int, timeout_s: float
) -> PlanStoreTimeoutError:
    """Error of a put that timed out, of which the rank has taken no later plans of the planner."""
    planner = turns.planner_of(iteration)
    n_taken = turns.number_of(iteration) - turns.n_entries
    return PlanStoreTimeoutError(
        f"no room for iteration {iteration} of rank {rank} at planner {planner} within "
        f"{timeout_s:g} s: all {turns.n_entries} entries are full, and rank {rank} last took "
        f"{_last(turns, n_taken, iteration)} from there"
    )


def no_plan_error(
    turns: PlannerTurns, iteration: int, rank: int, timeout_s: float
) -> PlanStoreTimeoutError:
    """Error of a take that timed out, where all earlier plans of the planner have been taken."""
    planner = turns.planner_of(iteration)
    n_put = turns.number_of(iteration)
    return PlanStoreTimeoutError(
        f"no plan for iteration {iteration} of rank {rank} from planner {planner} within "
        f"{timeout_s:g} s: planner {planner} last put {_last(turns, n_put, iteration)} for it"
    )


def _last(turns: PlannerTurns, count: int, like: int) -> str:
    return f"iteration {turns.iteration_at(count - 1, like)}" if count else "nothing"
