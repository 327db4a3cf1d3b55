"""Contract of every plan store. The MPI store runs on COMM_SELF: one rank, no launcher."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI
from tests.examples.local_plan_store import LocalPlanStore

from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import (
    PlannerFailedError,
    PlanStore,
    PlanStoreError,
    PlanStoreTimeoutError,
)

CAPACITY = 2
PLAN_BYTES = 1001

STORES: dict[str, Callable[[int], PlanStore]] = {
    "local": lambda first: LocalPlanStore(CAPACITY, PLAN_BYTES, first_iteration=first),
    "mpi": lambda first: MpiPlanStore(
        MPI.COMM_SELF, CAPACITY, PLAN_BYTES, first_iteration=first, progress="rma"
    ),
    "mpi with a progress thread": lambda first: MpiPlanStore(
        MPI.COMM_SELF, CAPACITY, PLAN_BYTES, first_iteration=first, progress="thread"
    ),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[PlanStore]:
    store = STORES[request.param](0)
    yield store
    store.close()


def test_plans_arrive_unchanged_and_in_order(store: PlanStore) -> None:
    store.put(0, 0, b"zero", timeout_s=1)
    store.put(1, 0, b"one", timeout_s=1)
    assert [store.take(k, 0, timeout_s=1) for k in (0, 1)] == [b"zero", b"one"]


@pytest.mark.parametrize("kind", STORES)
def test_a_store_may_begin_with_a_later_iteration(kind: str) -> None:
    store = STORES[kind](7)
    for iteration in (7, 8, 9, 10):
        store.put(iteration, 0, b"plan", timeout_s=1)
        assert store.take(iteration, 0, timeout_s=1) == b"plan"
    store.close()


def test_a_short_plan_after_a_long_one_in_its_entry_is_not_mixed_with_it(store: PlanStore) -> None:
    plans = [b"long" * 50, b"long" * 60, b"s", b""]
    for iteration, plan in enumerate(plans):
        store.put(iteration, 0, plan, timeout_s=1)
        assert store.take(iteration, 0, timeout_s=1) == plan


def test_what_a_rank_took_last_is_named(store: PlanStore) -> None:
    for iteration in range(4):
        store.put(iteration, 0, b"", timeout_s=1)
        if iteration < 2:
            store.take(iteration, 0, timeout_s=1)
    with pytest.raises(PlanStoreTimeoutError, match="rank 0 last took iteration 1"):
        store.put(4, 0, b"", timeout_s=0.01)


def test_a_put_that_gave_up_can_be_tried_again(store: PlanStore) -> None:
    assert store.capacity == CAPACITY
    for iteration in range(CAPACITY):
        store.put(iteration, 0, b"early", timeout_s=1)
    with pytest.raises(
        PlanStoreTimeoutError,
        match=r"no room for iteration 2 of rank 0 at planner 0 within 0.01 s: "
        r"all 2 entries are full, and rank 0 last took nothing",
    ):
        store.put(CAPACITY, 0, b"refused", timeout_s=0.01)
    store.take(0, 0, timeout_s=1)
    store.put(CAPACITY, 0, b"late", timeout_s=1)
    assert [store.take(k, 0, timeout_s=1) for k in (1, 2)] == [b"early", b"late"]


def test_what_a_planner_put_last_is_named(store: PlanStore) -> None:
    store.put(0, 0, b"", timeout_s=1)
    store.take(0, 0, timeout_s=1)
    with pytest.raises(PlanStoreTimeoutError, match="planner 0 last put iteration 0"):
        store.take(1, 0, timeout_s=0.01)


def test_a_take_that_gave_up_can_be_tried_again(store: PlanStore) -> None:
    with pytest.raises(
        PlanStoreTimeoutError,
        match=r"no plan for iteration 0 of rank 0 from planner 0 within 0.01 s: "
        r"planner 0 last put nothing for it",
    ):
        store.take(0, 0, timeout_s=0.01)
    store.put(0, 0, b"late", timeout_s=1)
    assert store.take(0, 0, timeout_s=1) == b"late"


def test_a_failure_arrives_in_place_of_the_plan(store: PlanStore) -> None:
    store.fail(0, 0, "sample 7 needs 9 GB", timeout_s=1)
    store.put(1, 0, b"fine", timeout_s=1)
    with pytest.raises(
        PlannerFailedError, match="rank 0 could not plan iteration 0: sample 7 needs 9 GB"
    ):
        store.take(0, 0, timeout_s=1)
    assert store.take(1, 0, timeout_s=1) == b"fine"


def test_a_plan_larger_than_an_entry_is_refused(store: PlanStore) -> None:
    with pytest.raises(
        PlanStoreError,
        match=r"plan of iteration 0 for rank 0 has 1002 bytes, but store.plan_bytes is 1001; raise",
    ):
        store.put(0, 0, bytes(PLAN_BYTES + 1), timeout_s=1)
    store.put(0, 0, b"a smaller one", timeout_s=1)


def test_a_planning_and_an_executing_thread_share_a_store(store: PlanStore) -> None:
    plans = [np.random.default_rng(k).bytes(k % PLAN_BYTES) for k in range(300)]

    def put_all() -> None:
        for iteration, plan in enumerate(plans):
            store.put(iteration, 0, plan, timeout_s=10)

    with ThreadPoolExecutor(max_workers=1) as planner:
        planning = planner.submit(put_all)
        taken = [store.take(iteration, 0, timeout_s=10) for iteration in range(len(plans))]
        planning.result()
    assert taken == plans
