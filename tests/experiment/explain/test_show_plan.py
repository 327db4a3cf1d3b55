"""Plans as they are shown and explained."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.examples.linear_cost import linear_cost
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment, with_keys

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.show_plan import explain_gain, show_plan
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.baselines.config import NaivePaddingConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.choice import Candidate, Choice
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule


def on_samples(folder: Path) -> ExperimentConfig:
    write_samples(folder / "samples.h5", [([1] * 20, [9], "long")] * 20)
    data = {"dataset": str(folder / "samples.h5")}
    return with_keys(tiny_experiment(n_stages=2), data=data)


def shown_plan(config: ExperimentConfig) -> str:
    return show_plan(Experiment(config).open(), iteration=0)


def test_a_plan_says_how_many_shapes_its_micro_batches_have(tmp_path: Path) -> None:
    batch = NaivePaddingConfig(rule="naive_padding", rows_per_microbatch=5)
    shown = shown_plan(with_keys(on_samples(tmp_path), planner={"batch": batch}))
    assert "micro-batches (rows x tokens): 0:5x24  1:5x24  2:2x24\n" in shown
    assert "\nmicro-batches: 3, of different shapes and layouts: 2\n" in shown


def test_a_plan_says_how_many_shapes_packed_rows_have_at_most(tmp_path: Path) -> None:
    planner = {"batch": DynamicConfig(layouts=("packed",), token_multiple=48)}
    data = {"tokens_per_batch": 400, "max_tokens": 32}
    config = on_samples(tmp_path)
    packed = with_keys(config, planner=planner, model={"max_tokens": 48}, data=data)
    assert packed.most_shapes == 9  # 48, 96, ..., 432 tokens
    assert re.search(
        r"\nmicro-batches: \d+, of different shapes and layouts: \d, in all iterations at most 9\n",
        shown_plan(packed),
    )
    both = DynamicConfig(layouts=("packed", "padded"))
    assert with_keys(packed, planner={"batch": both}).most_shapes is None
    t5 = tiny_t5_experiment().model
    assert packed.model_copy(update={"model": t5}).most_shapes is None


def test_a_plan_is_drawn_in_letters_and_as_a_file(tmp_path: Path) -> None:
    experiment = Experiment(on_samples(tmp_path)).open()
    plain = show_plan(experiment, 0)
    shown = show_plan(experiment, 0, timeline=True, svg=tmp_path / "plan.svg")
    assert shown.startswith(f"{plain}\ntimeline, ")
    drawn = shown.removeprefix(plain)
    assert re.search(r"\nrank 0 \|0+[0-9a-j.]+\|\nrank 1 \|\.+0[0-9a-j.]+\|\n", drawn)
    assert "\nbusiest: rank " in drawn
    n_microbatches = int(re.findall(r"micro-batches: (\d+),", plain)[0])
    svg = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert svg.count("<rect") == 1 + 2 * 2 * n_microbatches


COST = linear_cost(launch_ms=(0.0, 0.0), token_ms=(0.1, 0.1), token_bytes=1.0)
ROWS = [PaddedRows((0,), 80), PaddedRows((1,), 80)]  # 4 ms each way; 80 bytes, 40 on top


def gain(rows: Sequence[MicroBatch], rule: ScheduleRule, memory_bytes: int) -> str:
    link = Link(latency_ms=0.0, bytes_per_ms=1e12)
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes, link=link)
    pipeline = schedule_pipeline(rows, COST, cluster, [rule])
    return explain_gain(Choice((Candidate("by hand", [pipeline], COST),)), COST, cluster)


def test_as_long_as_1f1b_is_no_gain() -> None:
    assert gain(ROWS, cyclic, 1000) == (
        "the same micro-batches in 1F1B: 24.0 ms, 0.0 % more than the 24.0 ms of the plan"
    )


def test_a_long_micro_batch_after_a_short_one_gains_by_another_order() -> None:
    rows = [PaddedRows((i,), n_tokens) for i, n_tokens in enumerate((80, 8, 80))]
    assert gain(rows, adaptive, 1000) == (
        "the same micro-batches in 1F1B: 32.0 ms, 29.0 % more than the 24.8 ms of the plan"
    )


@pytest.mark.parametrize("memory_bytes", [120, 199])
def test_1f1b_may_need_more_memory_than_there_is(memory_bytes: int) -> None:
    assert gain(ROWS, adaptive, memory_bytes).startswith(
        "the same micro-batches in 1F1B: infeasible: 1f1b needs 200 bytes on stage 0, but "
        f"cluster.device_memory_bytes is {memory_bytes}"
    )
