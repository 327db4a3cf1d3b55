"""Which iterations are traced, and of which ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
from mpi4py import MPI
from tests.examples.example_numbers import iteration_result
from tests.examples.example_runs import example_plans, example_traces
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.run.iteration import ExecutedIteration, RankTrace, TakenPlan, Traces
from dynapipe_hpc.experiment.run.plan_ahead import PlannerActivity, PlanningFacts
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.report.config import ReportConfig


def config_of(n_shards: int = 1) -> ExperimentConfig:
    """The first iteration is traced without a request."""
    report = ReportConfig(trace_iterations=1)
    return tiny_experiment(n_shards=n_shards).model_copy(update={"report": report})


def executed(iteration: int) -> ExecutedIteration:
    plan, trace = example_plans(iteration)[0], example_traces(iteration)[0]
    taken = TakenPlan(b"plan", plan, (), waited_ms=0.0, plans_ahead=0)
    return ExecutedIteration(taken, trace, 0.0, is_first_shard=True, planning=PlanningFacts())


def test_the_first_iterations_are_traced_and_those_of_a_request(tmp_path: Path) -> None:
    traces = Traces(Job(MPI.COMM_SELF), config_of(), tmp_path, PlannerActivity())
    (tmp_path / "trace.request").write_text("3-4")
    traced = []
    for iteration in range(7):
        first, last = traces.take_request(iteration)
        numbers = replace(iteration_result(iteration), trace_first=first, trace_last=last)
        if traces.gather_if_wanted(executed(iteration), numbers):
            traced.append(iteration)
    assert traced == [0, 3, 4]


class JobOfFour(Job):
    """A job whose ranks all have the same traces, with their rank as the plan."""

    def gather(self, value: RankTrace) -> list[RankTrace]:  # type: ignore[override]
        return [replace(value, data=str(rank).encode()) for rank in range(4)]


@pytest.mark.parametrize(("n_shards", "expected"), [(1, b"0123"), (2, b"02")])
def test_only_the_first_shard_of_a_stage_is_traced(
    n_shards: int, expected: bytes, tmp_path: Path
) -> None:
    job = JobOfFour(MPI.COMM_SELF)
    traces = Traces(job, config_of(n_shards), tmp_path, PlannerActivity())
    gathered = traces.gather_if_wanted(executed(0), iteration_result(0))
    assert b"".join(each.data for each in gathered) == expected
