"""Training at its beginning, where the largest micro-batches may run first, and at its end."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from mpi4py import MPI
from tests.examples.local_plan_store import LocalPlanStore
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

import dynapipe_hpc.experiment.run.rank as largest_first
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.experiment.config import EvaluationConfig, ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice
from dynapipe_hpc.experiment.run.evaluations import (
    Evaluations,
    StopAskedError,
    mean_loss,
    task_losses,
)
from dynapipe_hpc.experiment.run.iteration import QuietPeriod
from dynapipe_hpc.experiment.run.open_run import LossHistory, is_complete
from dynapipe_hpc.experiment.run.plans import Plans
from dynapipe_hpc.experiment.run.rank import Rank, run_largest_first, runs_largest_first
from dynapipe_hpc.experiment.run.run import train
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.report.records import EvaluationRecord, TaskLoss
from dynapipe_hpc.training.config import LossWeighting

SAMPLES = [Sample(7, 3, 2, task_id=4), Sample(3, 1, 1, task_id=1), Sample(9, 0, 5, task_id=4)]
SUMS, COUNTS = np.array([4.0, 3.0, 5.0]), np.array([2.0, 1.0, 5.0])


@pytest.mark.parametrize(("loss_on", "n_tokens"), [("marked", 3), ("targets", 2), ("all", 5)])
def test_an_evaluation_counts_the_tokens_that_training_counts(
    loss_on: str, n_tokens: int, tmp_path: Path
) -> None:
    path = write_samples(tmp_path / "x.h5", spans=[[(0, 2), (3, 4)], [], []])
    tables = tiny_experiment().model_dump()
    tables["data"] |= {"dataset": str(path), "loss_on": loss_on}
    tables["evaluation"] = {"dataset": str(path), "tokens": 100}
    experiment = Experiment(ExperimentConfig.model_validate(tables)).open()
    rank = Rank(Job(MPI.COMM_SELF), experiment, RankDevice(CPU))
    found = Evaluations(rank, experiment, history=None, log=None).evaluate(0)
    of_others = {"all": 5}.get(loss_on, 4)  # of a sample without marks
    assert found.tasks["sum"].tokens == n_tokens + of_others


def test_the_loss_of_a_task_is_that_of_its_tokens() -> None:
    assert task_losses(SAMPLES, SUMS, COUNTS) == {4: TaskLoss(9 / 7, 7), 1: TaskLoss(3.0, 1)}


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("token", 12 / 8), ("sample", (2 + 3 + 1) / 3), ("task", (9 / 7 + 3) / 2)],
)
def test_the_loss_weighs_what_training_weighs(weighting: LossWeighting, expected: float) -> None:
    tasks = task_losses(SAMPLES, SUMS, COUNTS).values()
    assert mean_loss(SUMS, COUNTS, tasks, weighting) == pytest.approx(expected)


TABLE = EvaluationConfig(held_out=0.1, every=2, patience=1)


class IdleRank:
    """A rank that trains by failing: no test here wants an iteration."""

    job = None

    def execute(self, iteration: int, _: object) -> None:
        pytest.fail(f"iteration {iteration} is executed")


class Written:
    """Checkpoints, of which it is noted what happens."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self.calls.append((name, *values, *named.values()))


class Losses(Evaluations):
    """Evaluations whose results are known: losses, or the signal that interrupts."""

    def __init__(self, history: LossHistory, results: Mapping[int, float | int]) -> None:
        config = with_keys(tiny_experiment(), training={"iterations": 6})
        config = config.model_copy(update={"evaluation": TABLE})
        experiment = cast(Any, SimpleNamespace(config=config, evaluation=None))
        super().__init__(cast(Any, None), experiment, history=history, log=None)
        self.results = results

    def evaluate(self, n_done: int) -> EvaluationRecord:
        found = self.results[n_done]
        if isinstance(found, int):
            raise StopAskedError(found)
        return EvaluationRecord(n_done, found, 1.0, {"x": TaskLoss(found, 1)})


def end_of(
    n_done: int, history: LossHistory, results: Mapping[int, float | int]
) -> tuple[int, list[tuple[Any, ...]]]:
    """The signal that `train` returns, and what it asks of checkpoints, of 6 iterations."""
    written: Any = Written()
    evaluations = Losses(history, results)
    plans = cast(Any, SimpleNamespace(iterations=range(n_done, 6), costs=None))
    rank = cast(Any, IdleRank())
    signal = train(rank, plans, None, evaluations, checkpoints=written, n_traced=0)
    return signal, written.calls


def end(n_done: int, *, stopped: bool) -> tuple[object, ...]:
    """The end of a run that has executed nothing."""
    return ("end", n_done, stopped, False)


def test_a_last_evaluation_that_was_interrupted_is_made_up_for() -> None:
    history = LossHistory(1, [(0, 9.0), (2, 3.0), (4, 2.0)])
    assert not is_complete(range(6, 6), history)
    assert end_of(6, history, {6: SIGTERM}) == (SIGTERM, [end(6, stopped=True)])
    assert not is_complete(range(6, 6), history)
    assert end_of(6, history, {6: 1.0}) == (0, [end(6, stopped=False)])
    assert is_complete(range(6, 6), history)


def test_an_evaluation_that_is_made_up_for_may_end_training() -> None:
    """As it would have, had nothing interrupted it: without one more iteration."""
    history = LossHistory(1, [(0, 9.0), (2, 3.0)])
    assert end_of(4, history, {4: 3.5}) == (0, [end(4, stopped=False)])
    assert is_complete(range(4, 6), history)


def test_the_best_has_the_lowest_loss_since_training_began() -> None:
    history = LossHistory(patience=0)
    losses = {0: 0.5, 10: 3.0, 20: 2.0, 30: 2.0, 40: math.nan, 50: 1.0}
    best = [n_done for n_done, loss in losses.items() if history.add(n_done, loss)]
    assert best == [10, 20, 50]
    assert history.best == 50
    assert not history.is_over
    assert (30 in history, 35 in history) == (True, False)


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    history = LossHistory(patience=2)
    assert [history.add(n, loss) for n, loss in ((5, math.nan), (10, 4.0), (15, math.inf))] == [
        *(False, True, False)
    ]
    assert history.best == 10
    never = LossHistory(1, [(5, math.nan)])
    assert never.describe() == (
        "no lower loss in 1 evaluations (evaluation.patience); none was a finite number"
    )


def test_a_history_that_is_continued_is_the_same() -> None:
    losses = [(0, 9.0), (5, 3.0), (10, 4.0), (15, 3.5)]
    history = LossHistory(2, losses)
    assert history.is_over
    assert history.best == 5
    told = (
        "no lower loss in 2 evaluations .evaluation.patience.; the lowest, 3.0000, was after 5 it"
    )
    assert history.describe().startswith(
        told.replace(".evaluation.patience.", "(evaluation.patience)")
    )


ITERATIONS = range(3)
TINY = tiny_experiment()


def write_dataset(folder: Path) -> Path:
    """Samples of 2 to 31 tokens."""
    lengths = np.random.default_rng(2).integers(2, 32, 120).tolist()
    samples = [([1] * (n // 2), [2] * (n - n // 2), "task") for n in lengths]
    return write_samples(folder / "train.h5", samples)


def rank_of(folder: Path, **training: object) -> tuple[Rank, Plans]:
    """A rank alone, whose first plans are ready."""
    tables = TINY.model_dump()
    tables["data"]["dataset"] = str(write_dataset(folder))
    tables["training"] |= {"iterations": len(ITERATIONS), **training}
    experiment = Experiment(ExperimentConfig.model_validate(tables)).open()
    job = Job(MPI.COMM_SELF)
    rank = Rank(job, experiment, RankDevice(CPU))
    store = LocalPlanStore(capacity=len(ITERATIONS), plan_bytes=100_000)
    for k in ITERATIONS:
        plans = experiment.planner.make_plans(k, experiment.sampler.iteration(k))
        store.put(k, 0, encode_plans(plans)[0], timeout_s=1)
    return rank, Plans(
        job, experiment, ITERATIONS, rank.loader, store=store, quiet_period=QuietPeriod()
    )


def losses(rank: Rank, plans: Plans) -> list[float]:
    taken = (plans.take(iteration).plan for iteration in ITERATIONS)
    return [launch_plan(plan, rank.stage, rank.channels.transport).finish().loss for plan in taken]


@pytest.mark.parametrize("training", [{}, {"dtype": "bfloat16"}])
def test_losses_are_the_same_bits_with_and_without(
    tmp_path: Path, training: dict[str, str]
) -> None:
    expected = losses(*rank_of(tmp_path, **training))
    rank, plans = rank_of(tmp_path, **training)
    assert run_largest_first(rank, plans, TINY)
    assert losses(rank, plans) == expected


def test_the_largest_shapes_of_several_plans_are_run_with_the_largest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(largest_first, "MAX_SHAPES", 2)
    rank, plans = rank_of(tmp_path)
    loaded: list[int] = []
    stage = cast(Any, rank.stage)
    load = stage.load

    def noted_load(index: int, microbatch: MicroBatch) -> None:
        loaded.append(microbatch.padded_tokens)
        load(index, microbatch)

    stage.load = noted_load
    line = run_largest_first(rank, plans, TINY)
    planned = [float(number) for number in re.findall(r"planned ([\d.]+)", line)]
    assert len(planned) == 2
    assert planned == sorted(planned, reverse=True)
    ahead = [taken.plan for taken in plans.take_ahead(range(0))]
    assert len(ahead) == len(ITERATIONS)
    assert loaded[0] == max(m.padded_tokens for plan in ahead for m in plan.microbatches)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory\nx"), MemoryError()])
def test_a_lack_of_memory_names_sample_shape_and_key(tmp_path: Path, error: Exception) -> None:
    rank, plans = rank_of(tmp_path)

    def forward(*_: object, **__: object) -> None:
        raise error

    cast(Any, rank.stage).forward = forward
    with pytest.raises(
        RunError,
        match=r"iteration \d, rank 0: micro-batch \d+ of \d+ x \d+ tokens, whose longest sample "
        r"is \d+ with \d+ tokens, does not fit .* lower cluster.device_memory_bytes, which is "
        r"1,000.0 MB, or data.max_tokens",
    ):
        run_largest_first(rank, plans, TINY)


@pytest.mark.parametrize(
    ("choice", "on_gpus", "is_run"),
    [("auto", False, False), ("auto", True, True), ("on", False, True), ("off", True, False)],
)
def test_gpus_begin_with_it_and_others_if_asked(
    choice: Literal["auto", "on", "off"], on_gpus: bool, is_run: bool
) -> None:
    config = with_keys(tiny_experiment(), executor={"largest_first": choice})
    assert runs_largest_first(config, on_gpus=on_gpus) is is_run


TWO_OF_A_TASK = [Sample(0, 3, 2, task_id=0), Sample(1, 0, 1, task_id=1), Sample(2, 1, 4, task_id=0)]


def trained_rank(folder: Path, data: dict[str, str] | None = None, **training: object) -> Rank:
    """A rank alone, on the samples of a small dataset."""
    path = folder / "x.h5"
    tables = tiny_experiment().model_dump()
    tables["data"]["dataset"] = str(path if path.exists() else write_samples(path))
    tables["data"] |= data or {}
    tables["training"] |= training
    config = ExperimentConfig.model_validate(tables)
    experiment = Experiment(config).open()
    return Rank(Job(MPI.COMM_SELF), experiment, RankDevice(CPU))


def test_a_rank_loads_tokens_as_configured(tmp_path: Path) -> None:
    rank = trained_rank(tmp_path, loss_weighting="task")
    rank.loader.start_iteration(TWO_OF_A_TASK)
    batch = rank.loader(DenseRows(((0, 1), (2,)), 6))
    assert batch.tokens is not None
    assert batch.labels is not None
    assert batch.tokens.tolist() == [[9, 1, 2, 3, 4, 9], [9, 5, 6, 7, 8, 9]]
    twelfth, half = 1 / 12, 1 / 2
    assert batch.labels.weights.tolist() == [
        [0, 0, 0, twelfth, twelfth, half],
        [0, twelfth, twelfth, twelfth, twelfth, 0],
    ]


def test_a_rank_trains_what_is_configured(tmp_path: Path) -> None:
    spans = [[(0, 1), (3, 4)], [], []]
    write_samples(tmp_path / "x.h5", spans=spans)
    weights = {}
    for loss_on in ("marked", "targets", "all"):
        rank = trained_rank(tmp_path, {"loss_on": loss_on})
        rank.loader.start_iteration(TWO_OF_A_TASK[:1])
        labels = rank.loader(PaddedRows((0,), 6)).labels
        assert labels is not None
        weights[loss_on] = labels.weights.tolist()
    fifth, half = 1 / 5, 1 / 2
    assert weights == {
        "marked": [[half, 0, 0, half, 0, 0]],
        "targets": [[0, 0, 0, half, half, 0]],
        "all": [[fifth, fifth, fifth, fifth, fifth, 0]],
    }


def test_a_rank_starts_with_the_weights_of_its_seed(tmp_path: Path) -> None:
    found = []
    for seed in (3, 3, 4):
        parts = trained_rank(tmp_path, seed=seed, dtype="float64").state.snapshot()
        found.append({part.name: part.values.clone() for part in parts})
    assert all(torch.equal(found[0][name], weight) for name, weight in found[1].items())
    name = "weight/layers.2.attention.query_key_value.weight"
    assert found[0][name].dtype == torch.float64
    assert not torch.equal(found[0][name], found[2][name])
