"""The largest micro-batches run first: nothing of training changes, and a lack of memory is met."""

import re
from pathlib import Path
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
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice
from dynapipe_hpc.experiment.run.iteration import QuietPeriod
from dynapipe_hpc.experiment.run.plans import Plans
from dynapipe_hpc.experiment.run.rank import Rank, run_largest_first, runs_largest_first
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import encode_plans

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
    """Losses of all iterations."""
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
