"""What the first rank writes down, from what every rank sends it."""

import math
from dataclasses import astuple, replace

from tests.examples.example_runs import PREDICTED_MS, example_plans, example_traces

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.run.record import Execution, RankReport, line_of, record_of
from dynapipe_hpc.planner.schedule.outlier import Outlier

SAMPLES = [Sample(4, 9, 1), Sample(2, 8, 8), Sample(7, 3, 3)]


def executions() -> list[Execution]:
    return [
        Execution(plan, trace, waited_ms=float(plan.rank), planning_ms=5.0, plans_ahead=plan.rank)
        for plan, trace in zip(example_plans(3), example_traces(3), strict=True)
    ]


def test_the_numbers_of_all_ranks_make_one_record() -> None:
    record = record_of([RankReport.of(one) for one in executions()], 1, SAMPLES, measured_ms=80.0)
    assert (record.iteration, record.predicted_ms, record.measured_ms) == (3, PREDICTED_MS, 80)
    assert (record.loss, record.gradient_norm, record.learning_rate) == (2, 1, 1e-3)
    assert (record.n_samples, record.n_microbatches) == (3, 1)
    assert (record.real_tokens, record.padded_tokens) == (32, 48)
    assert (record.predicted_peak_bytes, record.measured_peak_bytes) == (10, 11)
    assert (record.waited_ms, record.planning_ms, record.plans_ahead) == (1, 10, 0)


def test_microbatches_of_every_replica_count_once() -> None:
    replicas = [RankReport.of(one) for one in executions() * 2]
    record = record_of(replicas, 1, SAMPLES, measured_ms=80.0)
    assert (record.n_microbatches, record.padded_tokens) == (2, 96)


def test_shards_of_a_stage_count_once_and_the_fullest_rank_tells_the_peak() -> None:
    reports = [RankReport.of(one) for one in executions() for _ in range(2)]
    reports[3] = replace(reports[3], measured_peak_bytes=99, waited_ms=7.0)
    record = record_of(reports, 2, SAMPLES, measured_ms=80.0)
    assert (record.loss, record.n_microbatches, record.padded_tokens) == (2, 1, 48)
    assert (record.measured_peak_bytes, record.waited_ms) == (99, 7)


def test_a_report_is_a_few_numbers() -> None:
    [first, _] = executions()
    assert all(isinstance(value, int | float) for value in astuple(RankReport.of(first)))


def test_the_log_names_the_sample_that_alone_lengthens_the_iteration() -> None:
    first, second = executions()
    outlier = Outlier(2, 1600, chain_ms=280.0, busy_ms=100.0)
    planned = [first, replace(second, outlier=outlier)]
    record = record_of([RankReport.of(one) for one in planned], 1, SAMPLES, measured_ms=80.0)
    assert (record.outlier_sample, record.outlier_tokens, record.outlier_ms) == (2, 1600, 180)
    assert line_of(record).endswith("plans ahead, sample 2 (1,600 tokens) adds 180 ms")


def test_the_log_says_when_an_update_was_left_out() -> None:
    record = record_of([RankReport.of(one) for one in executions()], 1, SAMPLES, measured_ms=80.0)
    assert "skipped" not in line_of(record)
    left_out = replace(record, gradient_norm=math.inf)
    assert line_of(left_out).endswith("plans ahead, update skipped: a gradient is not finite")
