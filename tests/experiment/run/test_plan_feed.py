from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mpi4py import MPI
from tests.examples.example_runs import example_plans
from tests.examples.local_plan_store import LocalPlanStore
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run.iteration import QuietPeriod
from dynapipe_hpc.experiment.run.plans import Plans
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.store.plan_store import PlannerFailedError

RANK = 0


class Loader:
    """Notes what is asked of it; reading may fail."""

    def __init__(self) -> None:
        self.samples: Sequence[Sample] = ()
        self.read: list[MicroBatch] = []
        self.error: Exception | None = None

    def start_iteration(self, samples: Sequence[Sample], _: int) -> None:
        self.samples = samples

    def read_ahead(self, microbatch: MicroBatch) -> None:
        if self.error:
            raise self.error
        self.read.append(microbatch)


class Batches:
    """A sample per iteration, which has its number."""

    def iteration(self, k: int) -> list[Sample]:
        return [Sample(k, 1, 1)]


def plans_of(store: LocalPlanStore, loader: Loader) -> Plans:
    experiment = SimpleNamespace(config=tiny_experiment(), sampler=Batches())
    return Plans(
        Job(MPI.COMM_SELF),
        cast(Any, experiment),
        range(3),
        cast(Any, loader),
        store=store,
        quiet_period=QuietPeriod(),
    )


def stored(n: int) -> LocalPlanStore:
    store = LocalPlanStore(capacity=3, plan_bytes=100_000)
    for iteration in range(n):
        store.put(iteration, RANK, encode_plans(example_plans(iteration))[RANK], timeout_s=1)
    return store


def busy_for(n: int) -> Callable[[], bool]:
    """A device that is found busy `n` times."""
    looks = iter([True] * n)
    return lambda: next(looks, False)


def test_a_plan_that_is_ready_is_taken_before_it_is_due() -> None:
    store, loader = stored(2), Loader()
    plans = plans_of(store, loader)
    first = plans.take(0)
    assert (first.plan, first.samples, first.plans_ahead) == (
        example_plans(0)[0],
        [Sample(0, 1, 1)],
        1,
    )
    plans.prepare(1, busy_for(9))
    assert store.plans_ahead(RANK) == 0
    assert loader.samples == [Sample(1, 1, 1)]
    assert loader.read == list(example_plans(1)[0].microbatches)
    assert plans.take(1).plan == example_plans(1)[0]


def test_nothing_is_read_when_the_device_is_done() -> None:
    loader = Loader()
    plans = plans_of(stored(1), loader)
    plans.prepare(0, busy_for(0))
    assert loader.read == []
    assert plans.take(0).plan.iteration == 0


def test_a_planner_that_failed_is_told_of_when_its_iteration_is_due() -> None:
    store = stored(0)
    store.fail(0, RANK, "no plan", timeout_s=1)
    plans = plans_of(store, Loader())
    plans.prepare(0, busy_for(9))
    with pytest.raises(PlannerFailedError, match="no plan"):
        plans.take(0)


def test_tokens_that_cannot_be_read_are_told_of_by_the_instruction_that_loads_them() -> None:
    loader = Loader()
    loader.error = RunError("cannot read sample 4")
    plans = plans_of(stored(1), loader)
    plans.prepare(0, busy_for(9))
    assert plans.take(0).plan.iteration == 0
