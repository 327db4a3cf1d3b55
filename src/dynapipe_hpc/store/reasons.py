"""Why a store refused: the same words from every store."""

from dynapipe_hpc.store.plan_store import (
    PlannerFailedError,
    PlanStoreError,
    PlanStoreTimeoutError,
)
from dynapipe_hpc.store.turns import Turns


def out_of_order(verb: str, iteration: int, rank: int, expected: int) -> PlanStoreError:
    """For a call that repeats or skips an iteration; `verb` is "put" or "take"."""
    return PlanStoreError(
        f"cannot {verb} iteration {iteration} of rank {rank}: iteration {expected} is next"
    )


def planner_failed(iteration: int, planner: int, reason: str) -> PlannerFailedError:
    """For a take of an iteration that could not be planned."""
    return PlannerFailedError(f"rank {planner} could not plan iteration {iteration}: {reason}")


def no_such_rank(rank: int, n_ranks: int) -> PlanStoreError:
    """For a rank outside of the job."""
    return PlanStoreError(f"there is no rank {rank}; the store serves ranks 0 to {n_ranks - 1}")


def not_the_planner(iteration: int, rank: int, planner: int) -> PlanStoreError:
    """For a put by a rank that does not plan the iteration."""
    return PlanStoreError(
        f"rank {rank} cannot put iteration {iteration}: rank {planner} is its planner"
    )


def not_the_reader(rank: int, caller: int) -> PlanStoreError:
    """For a rank that asks for the plans of another."""
    return PlanStoreError(
        f"rank {caller} cannot take plans of rank {rank}; every rank takes its own"
    )


def too_large(iteration: int, rank: int, n_bytes: int, plan_bytes: int) -> PlanStoreError:
    """For a plan that does not fit."""
    return PlanStoreError(
        f"the plan of iteration {iteration} for rank {rank} has {n_bytes} bytes, but "
        f"store.plan_bytes is {plan_bytes}; raise it"
    )


def damaged(
    iteration: int, rank: int, planner: int, n_bytes: int, plan_bytes: int
) -> PlanStoreError:
    """For a message that no planner wrote."""
    return PlanStoreError(
        f"the plan of iteration {iteration} for rank {rank} from planner {planner} is damaged: its "
        f"size is given as {n_bytes} bytes of at most {plan_bytes}, or it is of no known kind"
    )


def closed() -> PlanStoreError:
    """For any use after the end."""
    return PlanStoreError("the plan store is closed")


def no_room(
    turns: Turns, iteration: int, rank: int, timeout_s: float, n_taken: int
) -> PlanStoreTimeoutError:
    """For a put that waited too long; `n_taken` counts this planner's plans only."""
    planner = turns.planner_of(iteration)
    return PlanStoreTimeoutError(
        f"no room for iteration {iteration} of rank {rank} at planner {planner} within "
        f"{timeout_s:g} s: all {turns.n_slots} slots are full, and rank {rank} last took "
        f"{_last(turns, n_taken, iteration)} from there"
    )


def no_plan(
    turns: Turns, iteration: int, rank: int, timeout_s: float, n_put: int
) -> PlanStoreTimeoutError:
    """For a take that waited too long; `n_put` counts this planner's plans only."""
    planner = turns.planner_of(iteration)
    return PlanStoreTimeoutError(
        f"no plan for iteration {iteration} of rank {rank} from planner {planner} within "
        f"{timeout_s:g} s: planner {planner} last put {_last(turns, n_put, iteration)} for it"
    )


def _last(turns: Turns, count: int, like: int) -> str:
    return f"iteration {turns.iteration_at(count - 1, like)}" if count else "nothing"
