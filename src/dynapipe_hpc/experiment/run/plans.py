"""The plans of a run on a rank: made ahead, by costs that the run corrects, and prepared early."""

import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

import numpy as np

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.executor.run import IterationTrace
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.iteration import QuietPeriod, TakenPlan
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import decode, encode_plans
from dynapipe_hpc.plan.instruction import Backward, BackwardInput, BackwardWeight, Forward, Load
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.cost.pass_times import PassTimes, Timed
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.lower_bound import LongestTrip
from dynapipe_hpc.store.plan_store import PlannerFailedError, PlanStore, PlanStoreTimeoutError
from dynapipe_hpc.training.token_loader import TokenLoader

SLOW = 1.2
"""Ratio to the usual time from which a rank is reported as slow."""
RECOVERED = 1.1
"""Ratio to the usual time up to which a slow rank is reported as recovered."""
USUAL = 0.98
"""Share that the old usual time has in the new one: about the last fifty iterations count."""
MIN_SEEN = 10
"""Number of iterations after which the usual time is known."""


class StoppedError(Exception):
    """Planning is no longer needed."""


class SlowRanks:
    """Ranks whose passes take longer than they used to, or than on other replicas.

    While a rank is slow, its usual time stays what it was before.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._usual = np.ones((cluster.n_replicas, cluster.n_stages))
        self._is_slow = np.zeros(self._usual.shape, bool)
        self._n_seen = 0

    def add(self, now: FloatArray) -> list[str]:
        """Takes note of an iteration; returns a line for every rank that has changed.

        `now` are times as multiples of what the cost table says, shape (n_replicas, n_stages).
        """
        self._n_seen += 1
        if self._n_seen <= MIN_SEEN:
            self._usual = now
            return []
        ratio = now / np.minimum(self._usual, now.min(axis=0))
        is_slow = ratio > np.where(self._is_slow, RECOVERED, SLOW)
        changed = np.argwhere(is_slow != self._is_slow).tolist()
        self._is_slow = is_slow
        self._usual = np.where(is_slow, self._usual, USUAL * self._usual + (1 - USUAL) * now)
        return [self._line(replica, stage, ratio[replica, stage]) for replica, stage in changed]

    def _line(self, replica: int, stage: int, ratio: float) -> str:
        rank = self._cluster.rank_of(replica, stage)
        note = (
            f"{ratio:.2f} times as long as usual"
            if self._is_slow[replica, stage]
            else "as long as usual again"
        )
        return f"rank {rank} (stage {stage} of replica {replica}) takes {note} for its passes"


class OnlineCosts:
    """Pass times of the iterations so far, by which later ones are planned.

    Iteration k is planned by the times of the iterations before k - look_ahead, on whichever rank
    and whenever it is planned: all ranks have completed these before the store may hold a plan of
    iteration k. So plans depend on what was measured, but not on how far ahead a planner is.

    One thread adds iterations; another makes plans.
    """

    def __init__(self, experiment: Experiment, n_done: int, earlier: Any = None) -> None:
        """Continues after `n_done` iterations from the `state` at that point, `earlier`.

        A state that does not fit, such as another cluster's, is not used.
        """
        self._experiment = experiment
        self._look_ahead = experiment.config.store.look_ahead
        self._first, self._n_done = n_done, n_done
        cluster = experiment.config.cluster
        self._size = (cluster.n_replicas, cluster.n_stages)
        known: dict[int, PassTimes] = {}
        with suppress(InputError, TypeError, ValueError):
            times = [PassTimes.from_numbers(numbers, *self._size) for numbers in earlier or ()]
            known = dict(zip(range(n_done - len(times) + 1, n_done + 1), times, strict=True))
        self._known = known or {n_done: PassTimes.none(*self._size)}
        self._slow_ranks = SlowRanks(cluster)
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def state(self) -> list[list[float]]:
        """State of the next plans: pass times known after each of the last iterations, in order."""
        return [times.numbers for times in self._known.values()]

    def pass_times(
        self, plan: RankPlan, trace: IterationTrace, is_first_shard: bool
    ) -> tuple[float, ...]:
        """The numbers of `PassTimes` that this rank contributes to an iteration.

        The first iteration of a process does not count: much is done then for the first time.
        Of a stage, only the first shard counts, as all shards execute the same plan.
        """
        if not is_first_shard or plan.iteration == self._first:
            return tuple(PassTimes.none(*self._size).numbers)
        cost, factors = self._experiment.planner.cost, self._known[self._n_done].factors
        n_replicas, _ = self._size
        return tuple(measured_passes(plan, trace, cost, factors, n_replicas=n_replicas).numbers)

    def add(self, numbers: Sequence[float]) -> list[str]:
        """Adds the next iteration, by the sums over ranks of what `pass_times` returned.

        Returns a line for every rank that has become slow, or is no longer.
        """
        passes = PassTimes.from_numbers(numbers, *self._size)
        with self._changed:
            self._known[self._n_done + 1] = self._known[self._n_done].after(passes)
            self._n_done += 1
            for n in [n for n in self._known if n < self._n_done - self._look_ahead]:
                del self._known[n]
            self._changed.notify_all()
        return self._slow_ranks.add(self._known[self._n_done].levels)

    def planner(self, iteration: int) -> Planner:
        """The planner of an iteration, whose costs are corrected; waits until they are known.

        Raises `StoppedError`: No more iterations will be added.
        """
        n_done = iteration - self._look_ahead
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or n_done <= self._n_done)
            if self._is_closed:
                raise StoppedError
            times = self._known[max(n_done, min(self._known))]
        config, planner = self._experiment.config, self._experiment.planner
        return planner.corrected(config.planner, times.corrections, config.data.max_tokens)

    def close(self) -> None:
        """Wakes the thread that waits for measurements, to end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def measured_passes(
    plan: RankPlan, trace: IterationTrace, cost: CostModel, factors: FloatArray, *, n_replicas: int
) -> PassTimes:
    """Times of the passes that a rank has executed, each with its prediction by `cost`.

    Reading the tokens of a micro-batch is part of its forward pass, as in cost tables. `factors`
    are those known so far, see `PassTimes.factors`.
    """
    costs = microbatch_costs(plan.microbatches, cost)
    columns = (costs.forward_ms, costs.backward_ms, costs.weight_ms, costs.splitting_ms)
    of_microbatch = [column[:, plan.stage].tolist() for column in columns]
    passes = PassTimes.none(n_replicas, costs.n_stages)
    for step, start_ms, end_ms in zip(plan.instructions, trace.start_ms, trace.end_ms, strict=True):
        if not isinstance(step, Load | Forward | Backward | BackwardInput | BackwardWeight):
            continue
        forward, backward, weight, splitting = (each[step.microbatch] for each in of_microbatch)
        match step:
            case Load():
                parts, predicted_ms = [Timed.FORWARD], 0.0
            case Forward():
                parts, predicted_ms = [Timed.FORWARD], forward
            case Backward():
                parts, predicted_ms = [Timed.GRADIENT, Timed.WEIGHT], backward
            case BackwardInput():
                parts, predicted_ms = [Timed.GRADIENT], backward - weight + splitting
            case BackwardWeight():
                parts, predicted_ms = [Timed.WEIGHT], weight
        microbatch = plan.microbatches[step.microbatch]
        at = np.s_[microbatch.layout, microbatch.recompute, plan.stage, parts]
        passes.predicted_ms[at] += predicted_ms
        passes.measured_ms[at] += end_ms - start_ms
    rank = (plan.replica, plan.stage)
    passes.expected_ms[rank] = (factors * passes.predicted_ms).sum()
    passes.taken_ms[rank] = passes.measured_ms.sum()
    return passes


T = TypeVar("T")
_POLL_S = 0.5


class Plans:
    """Plans of a rank, iteration by iteration; a thread makes this rank's share of all plans.

    While the device is still busy with one iteration, the host prepares the next: it takes the plan
    if that is ready, and reads tokens. So the device waits for neither.

    The thread makes and encodes a plan once, and stores it for each of the ranks that execute it.
    Only the store's capacity limits it: it blocks in `put` while the store is full. An iteration
    that cannot be planned, or whose plans the store refuses, ends the planning: all ranks get the
    reason in place of a plan. Once some ranks have received their plan, no reason can be sent, as
    they would wait for the others while executing it: an error is then not caught, and `open_job`
    ends the job.
    """

    def __init__(
        self,
        job: Job,
        experiment: Experiment,
        iterations: range,
        loader: TokenLoader,
        *,
        store: PlanStore,
        quiet_period: QuietPeriod,
        known_costs: Sequence[Sequence[float]] = (),
    ) -> None:
        """Prepares to plan the remaining `iterations` into `store`, and to close it at the end.

        `known_costs` is the state of `costs` when the run was interrupted; `costs` is None if costs
        are fixed.
        """
        config = experiment.config
        self.iterations, self.quiet_period = iterations, quiet_period
        self._experiment, self._loader, self._rank = experiment, loader, job.rank
        self._store, self._timeout_s = store, config.store.timeout_s
        self.costs: OnlineCosts | None = None
        if config.planner.cost.online:
            self.costs = OnlineCosts(experiment, iterations.start, known_costs)
        self._plan_of_rank = [config.cluster.plan_of(rank) for rank in range(job.size)]
        self._planned: dict[int, tuple[float, LongestTrip]] = {}
        self._ahead: deque[Future[TakenPlan]] = deque()
        self._served: TakenPlan | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._plan_share, name="planner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        # The thread waits for costs, and writes into the store.
        if self.costs:
            self.costs.close()
        self._stopped.set()
        self._thread.join()
        # Collective: after an error of one rank, others may never reach it.
        if error is None or issubclass(error, SystemExit):
            self._store.close()

    @property
    def is_ahead(self) -> bool:
        return bool(self._ahead)

    def take(self, iteration: int) -> TakenPlan:
        """Waits for an iteration's plan, and lets the loader serve its global batch.

        Raises `PlanStoreError`: There is no plan, see `PlanStore.take`.
        """
        taken = self._ahead.popleft().result() if self._ahead else self._take(iteration, None)
        self.serve(taken)
        return taken

    def take_ahead(self, iterations: range) -> list[TakenPlan]:
        """Waits for the plans of the first iterations; `take` returns them again later.

        Returns the plans before the first that cannot be made; `take` raises its error when due.
        """
        for iteration in iterations:
            if not self._put_ahead(iteration, None):
                break
        return [ahead.result() for ahead in self._ahead if ahead.exception() is None]

    def serve(self, taken: TakenPlan) -> None:
        if taken is not self._served:
            self._loader.start_iteration(taken.samples, taken.plan.iteration)
            self._served = taken

    def prepare(self, iteration: int, is_busy: Callable[[], bool]) -> None:
        """Takes the plan of the next iteration if it is ready, and reads tokens while busy.

        The host has executed the plan of the current iteration; `is_busy` says whether the device
        is still executing it.
        """
        if not self._ahead:
            if not (n_ready := self._store.plans_ahead(self._rank)):
                return
            self._put_ahead(iteration, n_ready)
        if self._ahead[0].exception() is not None:
            return
        taken = self._ahead[0].result()
        self.serve(taken)
        # An error is met again, and reported, by the instruction that loads.
        with suppress(InputError, RunError):
            loads = (i for i in taken.plan.instructions if isinstance(i, Load))
            while is_busy() and (load := next(loads, None)):
                self._loader.read_ahead(taken.plan.microbatches[load.microbatch])

    def _plan_share(self) -> None:
        with suppress(StoppedError):
            for iteration in self.iterations:
                if self._store.planner_of(iteration) == self._rank:
                    self._plan_for_all(iteration)

    def _plan_for_all(self, iteration: int) -> None:
        ranks = range(len(self._plan_of_rank))
        try:
            plans = self._plan(iteration)
            # The largest first: if the store refuses any plan, it is this one.
            first, *others = sorted(ranks, key=lambda rank: -len(plans[rank]))
            self._retry_until_room(self._store.put, iteration, first, plans[first])
        except StoppedError:
            raise
        except Exception as error:  # executors must not wait for the plan, whatever the error
            reason = f"{type(error).__name__} on {platform.node()}: {error}"
            for rank in ranks:
                self._retry_until_room(self._store.fail, iteration, rank, reason)
            raise StoppedError from error
        for rank in others:
            self._retry_until_room(self._store.put, iteration, rank, plans[rank])

    def _plan(self, iteration: int) -> list[bytes]:
        """Encoded plans of an iteration, by rank of the job."""
        started_s = time.thread_time()
        planner = self._experiment.planner
        if self.costs:
            planner = self.costs.planner(iteration)  # waits for earlier iterations
        self.quiet_period.wait()
        samples = self._experiment.sampler.iteration(iteration)
        choice = planner.choose(samples)
        trip = planner.longest_trip(choice, samples)
        plans = encode_plans(planner.write(iteration, choice))
        self._planned[iteration] = 1e3 * (time.thread_time() - started_s), trip
        return [plans[plan] for plan in self._plan_of_rank]

    def _retry_until_room(
        self, store: Callable[[int, int, T, float], None], iteration: int, rank: int, what: T
    ) -> None:
        while not self._stopped.is_set():
            with suppress(PlanStoreTimeoutError):
                return store(iteration, rank, what, _POLL_S)
        raise StoppedError

    def _put_ahead(self, iteration: int, n_ready: int | None) -> bool:
        """Takes a plan, or the error in its place, ahead of time; returns whether it is a plan."""
        ahead = Future[TakenPlan]()
        self._ahead.append(ahead)
        try:
            ahead.set_result(self._take(iteration, n_ready))
        except PlannerFailedError as error:
            ahead.set_exception(error)  # all ranks end together when the iteration is due
            return False
        return True

    def _take(self, iteration: int, n_ready: int | None) -> TakenPlan:
        started_s = time.perf_counter()
        data = self._store.take(iteration, self._rank, self._timeout_s)
        waited_ms = 1e3 * (time.perf_counter() - started_s)
        samples = self._experiment.sampler.iteration(iteration)
        # Looking costs as much as taking.
        plans_ahead = self._store.plans_ahead(self._rank) if n_ready is None else n_ready - 1
        # The thread writes this before it stores the first plan.
        planning_ms, trip = self._planned.pop(iteration, (0.0, None))
        plan = decode(data)
        return TakenPlan(data, plan, samples, waited_ms, plans_ahead, planning_ms, trip)


def check_same_plans(job: Job, iteration: int, plans_hash: int) -> None:
    """Compares every rank's hash over all ranks' plans; each plan holds one.

    Ranks that execute plans not made together would deadlock or silently compute something
    wrong. So this is called before the first instruction, by all ranks together. It costs one small
    all-reduce for any number of ranks; only if hashes differ do they find out on which rank.

    Raises `SystemExit`: On every rank, if any two hashes differ; the first rank prints two.
    """
    if job.is_same_on_all(plans_hash):
        return
    hashes = job.all_gather_int(plans_hash)
    rank = next(rank for rank, number in enumerate(hashes) if number != hashes[0])
    with job.fail_together():
        raise RunError(
            f"iteration {iteration}: the plan of rank {rank} belongs to plans with hash "
            f"{hashes[rank]:016x}, that of rank 0 to plans with hash {hashes[0]:016x}; they "
            "cannot be executed together; start the run again"
        )
