"""Numbers of a rank about an iteration."""

import math
from dataclasses import replace

import pytest
from tests.examples.example_runs import PREDICTED_MS, example_plans, example_traces

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run.iteration import ExecutedIteration, IterationResult, TakenPlan
from dynapipe_hpc.experiment.run.plan_ahead import PlanningFacts
from dynapipe_hpc.planner.schedule.outlier import Outlier

SAMPLES = [Sample(4, 9, 1), Sample(2, 8, 8), Sample(7, 3, 3)]


def executions(*, first_shard: bool = True) -> list[ExecutedIteration]:
    return [
        ExecutedIteration(
            TakenPlan(b"", plan, SAMPLES, waited_ms=float(plan.rank), plans_ahead=plan.rank),
            trace,
            0.0,
            is_first_shard=first_shard,
            planning=PlanningFacts(5.0),
        )
        for plan, trace in zip(example_plans(3), example_traces(3), strict=True)
    ]


def numbers(*, first_shard: bool = True) -> list[IterationResult]:
    return [IterationResult.from_rank(one) for one in executions(first_shard=first_shard)]


def test_the_numbers_of_a_rank_are_those_of_its_plan_and_trace() -> None:
    first, second = numbers()
    assert (first.iteration, first.predicted_ms, first.gradient_norm) == (3, PREDICTED_MS, 1)
    assert (first.n_microbatches, first.padded_tokens) == (1, 48)
    assert (second.n_microbatches, second.padded_tokens, second.loss) == (0, 0, 1)
    assert (second.predicted_peak_bytes, second.measured_peak_bytes) == (10, 11)
    assert (second.waited_ms, second.planning_ms, second.plans_ahead) == (1, 5, 1)


def test_only_the_first_shard_of_a_stage_counts_what_is_added_up() -> None:
    first, second = numbers(first_shard=False)
    assert (first.n_microbatches, first.padded_tokens, second.loss) == (0, 0, 0)
    assert (second.measured_peak_bytes, second.planning_ms) == (11, 5)


def test_numbers_know_the_global_batch() -> None:
    for each in numbers():
        assert (each.n_samples, each.real_tokens) == (3, 32)


def test_numbers_have_the_sample_that_alone_lengthens_the_iteration() -> None:
    outlier = Outlier(2, 1600, chain_ms=280.0, busy_ms=100.0)
    facts = PlanningFacts(5.0, 26.0, outlier)
    planned = IterationResult.from_rank(replace(executions()[0], planning=facts))
    assert (planned.outlier_sample, planned.outlier_tokens, planned.outlier_ms) == (2, 1600, 180)
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
