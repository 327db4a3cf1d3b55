"""The MPI store between ranks; what it does within one is in the contract tests."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

from dynapipe_hpc.store.config import ProgressChoice
from dynapipe_hpc.store.mpi import MpiPlanStore, wait_for_quiet
from dynapipe_hpc.store.plan_store import PlanStoreTimeoutError

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()
HALF = 2 * RANK // N_RANKS  # number of a host, if every half of the ranks has one
PLAN_BYTES = 60_000
LONG_S = 30

needs_two_ranks = pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")

PlanOf = Callable[[int, int], bytes]


@pytest.fixture(params=[(1, "rma", 0), (1, "thread", HALF), (3, "thread", HALF), (8, "rma", 0)])
def store(request: pytest.FixtureRequest) -> Iterator[MpiPlanStore]:
    look_ahead, progress, host = request.param
    store = MpiPlanStore(WORLD, look_ahead, PLAN_BYTES, progress=progress, host=host)
    yield store
    store.close()


@pytest.fixture(params=[1, 2])
def narrow_store(request: pytest.FixtureRequest) -> Iterator[MpiPlanStore]:
    n_hosts = request.param
    host = HALF if n_hosts == 2 else 0
    store = MpiPlanStore(WORLD, 1, PLAN_BYTES, progress="thread", host=host)
    yield store
    store.close()


def numbered_plan(iteration: int, rank: int) -> bytes:
    return f"iteration {iteration} of rank {rank}".encode()


def random_plan(iteration: int, rank: int) -> bytes:
    random = np.random.default_rng((iteration, rank))
    return random.bytes(int(random.integers(PLAN_BYTES + 1)))


def put_own_share(store: MpiPlanStore, n_iterations: int, plan_of: PlanOf) -> None:
    for iteration in range(n_iterations):
        if store.planner_of(iteration) == RANK:
            for rank in range(N_RANKS):
                store.put(iteration, rank, plan_of(iteration, rank), LONG_S)


def taken_in_job(store: MpiPlanStore, n_iterations: int) -> Iterator[bytes]:
    """Plans that a rank takes in one thread while it puts its share of them in another."""
    with ThreadPoolExecutor(max_workers=1) as planner:
        planning = planner.submit(put_own_share, store, n_iterations, random_plan)
        for iteration in range(n_iterations):
            yield store.take(iteration, RANK, LONG_S)
        planning.result()


def test_every_rank_gets_its_own_plans_of_all_sizes_in_order(store: MpiPlanStore) -> None:
    for iteration, plan in enumerate(taken_in_job(store, 50)):
        assert plan == random_plan(iteration, RANK)
        assert store.plans_ahead(RANK) <= store.capacity


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, HALF])
def test_nothing_is_lost_or_repeated_in_10000_iterations(host: int) -> None:
    store = MpiPlanStore(WORLD, 4, PLAN_BYTES, host=host)
    for iteration, plan in enumerate(taken_in_job(store, 10_000)):
        assert plan == random_plan(iteration, RANK)
    with pytest.raises(PlanStoreTimeoutError, match="no plan for iteration 10000"):
        store.take(10_000, RANK, timeout_s=0)
    store.close()


def test_a_leader_that_waits_answers_planners_of_other_hosts() -> None:
    """Without a thread that does, and where the network needs the owner of memory."""
    store = MpiPlanStore(WORLD, 4, PLAN_BYTES, progress="rma", host=HALF)
    for iteration, plan in enumerate(taken_in_job(store, 20)):
        assert plan == random_plan(iteration, RANK)
    store.close()


def test_all_plans_within_the_look_ahead_are_ready_at_once(store: MpiPlanStore) -> None:
    put_own_share(store, store.capacity, numbered_plan)
    WORLD.Barrier()
    assert store.plans_ahead(RANK) == store.capacity


@needs_two_ranks
def test_a_slow_rank_holds_up_its_own_plans_only(narrow_store: MpiPlanStore) -> None:
    if RANK == 0:
        for rank in range(N_RANKS):
            narrow_store.put(0, rank, b"", LONG_S)
    if RANK != 1:
        narrow_store.take(0, RANK, LONG_S)
    WORLD.Barrier()
    if RANK == 0:
        narrow_store.put(1, 0, b"", timeout_s=1)
        with pytest.raises(PlanStoreTimeoutError, match="rank 1 last took nothing"):
            narrow_store.put(1, 1, b"", timeout_s=0.01)


def compute_without_the_interpreter(until_s: float) -> None:
    matrix = np.ones((300, 300))
    while time.monotonic() < until_s:
        matrix @ matrix


def compute_in_python(until_s: float) -> None:
    while time.monotonic() < until_s:
        pass


@needs_two_ranks
@pytest.mark.parametrize("compute", [compute_without_the_interpreter, compute_in_python])
@pytest.mark.parametrize("progress", ["auto", "thread"])
def test_plans_are_taken_while_their_planner_computes(
    compute: Callable[[float], None], progress: ProgressChoice
) -> None:
    """Also while the ranks compute in whose memory plans wait; each half has a host of its own."""
    store = MpiPlanStore(WORLD, 1, PLAN_BYTES, progress=progress, host=HALF)
    WORLD.Barrier()
    start_s, is_busy = time.monotonic(), RANK in {0, N_RANKS // 2}
    if RANK == 0:
        for rank in range(N_RANKS):
            store.put(0, rank, numbered_plan(0, rank), LONG_S)
    put_s = time.monotonic() - start_s
    if is_busy:
        compute(start_s + 1.5)  # and never enters MPI
    assert store.take(0, RANK, LONG_S) == numbered_plan(0, RANK)
    waited_s = put_s if is_busy else time.monotonic() - start_s
    store.close()
    assert waited_s < 0.75, f"put or took the plan after {waited_s:.2f} s"


@pytest.mark.parametrize("host", [0, HALF])
def test_the_store_says_who_answers_and_why(host: int) -> None:
    store = MpiPlanStore(WORLD, 1, PLAN_BYTES, host=host)
    said = set(WORLD.allgather(str(store.progress)))
    n_hosts = len(set(WORLD.allgather(host)))
    store.close()
    alone = r"one-sided access \(one host, whose ranks share memory\)"
    answered = r"one-sided access \(ranks that computed answered within .* ms\)"
    helped = r"one-sided access with a progress thread per host \(rank 1 did not answer"
    expected = f"({answered}|{helped})" if n_hosts > 1 else alone
    assert re.match(f"plan store: {expected}", said.pop())
    assert not said


@needs_two_ranks
def test_an_access_that_waits_for_the_owner_is_seen_to_wait() -> None:
    entered = WORLD.Dup()

    def ask_by_message(owner: int) -> None:
        entered.send(None, owner)
        entered.recv(source=owner)

    def answer_when_done() -> None:
        time.sleep(0.02)
        for rank in (*range(1, N_RANKS), *range(1, N_RANKS)):
            entered.recv(source=rank)
            entered.send(None, rank)

    assert wait_for_quiet(WORLD, 0, ask_by_message, answer_when_done) > 15
    entered.Free()


def test_stores_of_one_job_do_not_meet() -> None:
    stores = [MpiPlanStore(WORLD, 1, PLAN_BYTES) for _ in range(2)]
    for number, store in enumerate(stores):
        if RANK == 0:
            for rank in range(N_RANKS):
                store.put(0, rank, bytes([number]), LONG_S)
    assert [store.take(0, RANK, LONG_S) for store in stores] == [b"\0", b"\1"]
    for store in stores:
        store.close()
