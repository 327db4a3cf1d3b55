"""Plans as they are shown and explained."""

import re
from pathlib import Path

from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment, with_keys

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.show_plan import show_plan
from dynapipe_hpc.planner.baselines.config import NaivePaddingConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig


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
