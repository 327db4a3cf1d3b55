import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pytest
from mpi4py import MPI
from tests.examples.example_runs import PREDICTED_MS, example_plans, example_traces

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run.iteration import IterationResult, TakenPlan, all_reduce_fields
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.schedule.lower_bound import LongestTrip
from dynapipe_hpc.report.records import Over

SAMPLES = [Sample(4, 9, 1), Sample(2, 8, 8), Sample(7, 3, 3)]


def numbers(
    *, is_first_shard: bool = True, trip: LongestTrip | None = None
) -> list[IterationResult]:
    return [
        IterationResult.from_rank(
            TakenPlan(b"", plan, SAMPLES, float(plan.rank), plan.rank, 5.0, trip),
            trace,
            is_first_shard=is_first_shard,
        )
        for plan, trace in zip(example_plans(3), example_traces(3), strict=True)
    ]


def test_the_numbers_of_a_rank_are_those_of_its_plan_and_trace() -> None:
    first, second = numbers()
    assert (first.iteration, first.predicted_ms, first.gradient_norm) == (3, PREDICTED_MS, 1)
    assert (first.n_microbatches, first.padded_tokens) == (1, 48)
    assert (second.n_microbatches, second.padded_tokens, second.loss) == (0, 0, 1)
    assert (second.predicted_peak_bytes, second.measured_peak_bytes) == (10, 11)
    assert (second.waited_ms, second.planning_ms, second.plans_ahead) == (1, 5, 1)


def test_only_the_first_shard_of_a_stage_counts_what_is_added_up() -> None:
    first, second = numbers(is_first_shard=False)
    assert (first.n_microbatches, first.padded_tokens, second.loss) == (0, 0, 0)
    assert (second.measured_peak_bytes, second.planning_ms) == (11, 5)


def test_numbers_have_the_sample_that_alone_lengthens_the_iteration() -> None:
    planned, _ = numbers(trip=LongestTrip(Sample(2, 1599, 1), 26.0, 18.0))
    assert (planned.outlier_sample, planned.outlier_tokens, planned.outlier_ms) == (2, 1600, 18)
    assert planned.longest_trip_share == 26 / PREDICTED_MS


def test_the_bubble_is_the_time_until_the_last_pass_without_one() -> None:
    """Rank 0 ends F0 and B0 of 8 ms each at 16 and 56 ms; rank 1 at 32 and 40 ms."""
    first, second = numbers()
    assert (first.passes_ms, first.last_pass_ms) == (16, 56)
    assert (second.passes_ms, second.last_pass_ms) == (16, 40)
    assert first.bubble_share == pytest.approx(40 / 56)
    both = replace(first, passes_ms=first.passes_ms + second.passes_ms, n_ranks=2)
    assert both.bubble_share == first.bubble_share
    assert math.isnan(replace(first, last_pass_ms=0.0).bubble_share)


@dataclass(frozen=True)
class Numbers:
    """One of every kind."""

    same: Annotated[int, Over.SAME]
    least: Annotated[int, Over.MIN]
    total: Annotated[float, Over.SUM]
    totals: Annotated[tuple[float, ...], Over.SUM]
    count: Annotated[int, Over.SUM]
    largest: Annotated[float, Over.MAX]


class JobOfTwo(Job):
    """A job whose other rank has ten more of everything."""

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        return [number + (number + 10) for number in map(float, numbers)]

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        return [max(number, number + 10) for number in map(float, numbers)]


def test_a_field_is_combined_as_its_type_says() -> None:
    own = Numbers(same=3, least=7, total=0.5, totals=(1.0, 2.0, 4.0), count=5, largest=2.5)
    combined = all_reduce_fields(own, JobOfTwo(MPI.COMM_SELF))
    # The largest of the negatives, -7 and 3, is 3: of a rank that has -3.
    assert combined == Numbers(3, -3, 11.0, (12.0, 14.0, 18.0), 20, 12.5)
    assert (type(combined.count), type(combined.least)) == (int, int)
