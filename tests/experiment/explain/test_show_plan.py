import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.examples.measured_layers import linear_table
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.explain.show_plan import prediction_text, show_plan
from dynapipe_hpc.planner.baselines.config import NaivePaddingConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.cost.table.profile_table import fingerprint_of
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.lower_bound import LowerBound


def on_samples(folder: Path) -> ExperimentConfig:
    write_samples(folder / "samples.h5", [([1] * 20, [9], "long")] * 20)
    config = tiny_experiment(n_stages=2)
    data = config.data.model_copy(update={"dataset": str(folder / "samples.h5")})
    return config.model_copy(update={"data": data})


def measured(config: ExperimentConfig, path: Path) -> ExperimentConfig:
    cost = ProfiledConfig(path=path)
    planner = config.planner.model_copy(update={"cost": cost})
    return config.model_copy(update={"planner": planner})


def shown_plan(config: ExperimentConfig) -> str:
    return show_plan(Experiment(config).open(), iteration=0)


def test_a_plan_says_that_its_costs_are_estimates(tmp_path: Path) -> None:
    shown = shown_plan(on_samples(tmp_path))
    assert "costs estimated from peak rates, not measured\n" in shown
    assert "\nrank 1 (replica 0, stage 1): " in shown


def test_a_prediction_says_what_its_bound_rests_on() -> None:
    text = prediction_text(105.0, LowerBound(100.0, 42.0))
    bound = "predicted 105.0 ms, lower bound 100.0 ms, gap 5.0 %"
    assert text == f"{bound}, longest sample's own trip 40 %"


def test_a_plan_says_how_many_shapes_its_micro_batches_have(tmp_path: Path) -> None:
    config = on_samples(tmp_path)
    batch = NaivePaddingConfig(rule="naive_padding", rows_per_microbatch=5)
    planner = config.planner.model_copy(update={"batch": batch})
    shown = shown_plan(config.model_copy(update={"planner": planner}))
    assert "micro-batches (rows x tokens): 0:5x24  1:5x24  2:2x24\n" in shown
    assert "\nmicro-batches: 3, of different shapes and layouts: 2\n" in shown


def test_a_plan_says_how_many_shapes_packed_rows_have_at_most(tmp_path: Path) -> None:
    config = on_samples(tmp_path)
    batch = DynamicConfig(layouts=("packed",), token_multiple=48)
    planner = config.planner.model_copy(update={"batch": batch})
    model = config.model.model_copy(update={"max_tokens": 48})
    data = config.data.model_copy(update={"tokens_per_batch": 400, "max_tokens": 32})
    packed = config.model_copy(update={"planner": planner, "model": model, "data": data})
    assert packed.most_shapes == 9  # 48, 96, ..., 432 tokens
    assert re.search(
        r"\nmicro-batches: \d+, of different shapes and layouts: \d, in all iterations at most 9\n",
        shown_plan(packed),
    )
    both = DynamicConfig(layouts=("packed", "padded"))
    planner = config.planner.model_copy(update={"batch": both})
    assert packed.model_copy(update={"planner": planner}).most_shapes is None
    t5 = tiny_t5_experiment().model
    assert packed.model_copy(update={"model": t5}).most_shapes is None


def test_a_plan_says_which_ranks_are_its_shards(tmp_path: Path) -> None:
    config = on_samples(tmp_path)
    cluster = config.cluster.model_copy(update={"n_shards": 2})
    shown = shown_plan(config.model_copy(update={"cluster": cluster}))
    assert "\nrank 1 (replica 0, stage 1, on ranks 2 to 3 of the job): " in shown
    assert "\nrank 1 | " in shown
    assert "rank 2" not in shown.replace("ranks 2", "")


def test_a_plan_names_the_cost_table_and_what_noise_there_was_in_it(tmp_path: Path) -> None:
    config, path = on_samples(tmp_path), tmp_path / "costs.h5"
    table = replace(linear_table(), model=fingerprint_of(config.model))
    write_table(table, path)
    shown = shown_plan(measured(config, path))
    assert f"costs measured in padded rows, from {path}; noise repaired in 0.0 % of them\n" in shown


def test_a_plan_warns_of_costs_of_other_circumstances(tmp_path: Path) -> None:
    config, path = on_samples(tmp_path), tmp_path / "costs.h5"
    model, provenance = fingerprint_of(config.model), {"threads": "9"}
    write_table(replace(linear_table(), model=model, provenance=provenance), path)
    shown = shown_plan(measured(config, path))
    assert f"\nwarning: {path}: was measured with threads 9 (here 1); predictions may" in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provenance": {"dtype": "bfloat16"}}, "with dtype bfloat16, but training.dtype is float"),
        ({"model": {"hidden_size": 32}}, r"of another model: .*hidden_size is 32 there and 16 in"),
    ],
)
def test_costs_of_another_type_or_model_are_refused(
    tmp_path: Path, changes: dict[str, dict[str, str | int]], message: str
) -> None:
    config, path = on_samples(tmp_path), tmp_path / "costs.h5"
    model = dict(fingerprint_of(config.model)) | changes.get("model", {})
    provenance = {name: str(value) for name, value in changes.get("provenance", {}).items()}
    write_table(replace(linear_table(), model=model, provenance=provenance), path)
    with pytest.raises(InputError, match=message):
        shown_plan(measured(config, path))


def test_an_explanation_says_whether_halves_of_backward_passes_were_measured(
    tmp_path: Path,
) -> None:
    config, path = on_samples(tmp_path), tmp_path / "costs.h5"
    write_table(replace(linear_table(), model=fingerprint_of(config.model)), path)
    whole = measured(config, path)
    schedule = ScheduleConfig(split_backward=True)
    planner = whole.planner.model_copy(update={"schedule": schedule})
    split = whole.model_copy(update={"planner": planner})
    line = "\nhalves of backward passes: gradients of weights are estimated by FLOPs"
    for each, explain, is_said in (
        (split, True, True),
        (split, False, False),
        (whole, True, False),
    ):
        shown = show_plan(Experiment(each).open(), 0, explain)
        assert (line in shown) == is_said


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
