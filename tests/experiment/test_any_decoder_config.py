from pathlib import Path

import pytest
from tests.examples.any_decoders import saved_decoder
from tests.examples.measured_layers import linear_table_of, with_halves
from tests.examples.small_models import set_in_config
from tests.jobs.tuning_files import write_tuning_files

from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment import checks
from dynapipe_hpc.experiment.load import ConfigError, load_config, to_toml
from dynapipe_hpc.planner.cost.table.profile_file import write_table


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A configuration that names a model, whose costs have not been measured yet."""
    saved_decoder("granite", tmp_path / "theirs")
    write_tuning_files(tmp_path, f"{tmp_path}/")
    return tmp_path / "config.toml"


def test_all_keys_are_taken_from_the_folder(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert isinstance(config.model, TransformersShape)
    assert config.model.model_type == "granite"
    assert config.model.n_layers == 4
    assert config.model.tensors["model.layers.*.mlp.down_proj.weight"] == (16, 24)
    written = tmp_path / "written.toml"
    written.write_text(to_toml(config))
    assert load_config(written) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.n_shards=2", "cluster.n_shards is 2"),
        ('planner.cost.recompute=["none", "selective"]', "planner.cost.recompute has 'selective'"),
    ],
)
def test_what_needs_layers_of_this_package_is_refused(
    override: str, message: str, path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{message}, but the layers of model.family = 'trans"):
        load_config(path, [override])


def test_preference_pairs_need_scores_without_caps(path: Path, tmp_path: Path) -> None:
    overrides = ['training.objective="dpo"', 'planner.batch.layouts=["packed"]']
    assert load_config(path, overrides).training.objective == "dpo"
    set_in_config(tmp_path / "theirs", attn_logit_softcapping=30.0)
    load_config(path)
    with pytest.raises(ConfigError, match=r"share their prompt .* \(attn_logit_softcapping is 30"):
        load_config(path, overrides)


def test_split_passes_are_refused_where_a_relu_leaves_no_room_for_what_waits(
    path: Path, tmp_path: Path
) -> None:
    splits = "planner.schedule.split_backward=true"
    assert load_config(path, [splits]).planner.schedule.split_backward
    set_in_config(tmp_path / "theirs", hidden_act="relu")
    load_config(path)
    with pytest.raises(ConfigError, match="layers of this granite have a ReLU, which frees too"):
        load_config(path, [splits])


def test_split_passes_need_halves_that_were_measured(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, costs = load_config(path).model, tmp_path / "costs.h5"
    table = linear_table_of(model, 8, {"dtype": "float64", "optimizer": "adamw"})
    write_table(table, costs)
    measured = f"planner.cost={{kind='profiled', path='{costs}'}}"
    options = ["--set", measured, "--set", "planner.schedule.split_backward=true"]
    assert main(["plan", str(path), "--set", measured]) == 0
    assert main(["plan", str(path), *options]) == 2
    told = capsys.readouterr().err
    assert "lacks the halves of backward passes of tensor_parallel=1/recompute=none/layer, " in told
    assert "'dynapipe-hpc profile CONFIG -o TABLE.h5' measures them" in told
    write_table(with_halves(table), costs)
    assert main(["plan", str(path), *options]) == 0


AS_CHOSEN = ['planner.batch={rule="dynamic", layouts=["packed"]}', "planner.search.effort=1"]
SLICED = [*AS_CHOSEN, "planner.batch.slices=16"]


def test_samples_may_be_cut(path: Path) -> None:
    assert load_config(path, SLICED).may_slice
    assert load_config(path, AS_CHOSEN).may_slice


def test_samples_run_whole_where_scores_have_caps(path: Path, tmp_path: Path) -> None:
    saved_decoder("gemma2", tmp_path / "theirs")
    refusal = r"slices is 16, but .* 'transformers' cannot be cut .* as scores have a soft cap"
    with pytest.raises(ConfigError, match=refusal):
        load_config(path, SLICED)
    assert not load_config(path, AS_CHOSEN).may_slice


def test_rows_longer_than_a_window_are_left_to_layers_that_have_it(
    path: Path, tmp_path: Path
) -> None:
    saved_decoder("llama", tmp_path / "theirs")
    set_in_config(tmp_path / "theirs", model_type="mistral", sliding_window=24)
    with pytest.raises(ConfigError, match=r'not 48 \(family = "transformers" computes longer rows'):
        load_config(path, ["model.max_tokens=48"])
    config = load_config(path, ['model.family="transformers"', "model.max_tokens=48"])
    assert config.model.max_tokens == 48


def test_costs_are_estimated_before_anything_is_measured(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", str(path)])  # a problem: one rank of four
    told = capsys.readouterr().out
    assert "with the longest sample, " in told
    assert main(["plan", str(path)]) == 0
    quick = ["--set", "planner.search.effort=0"]
    assert main(["tune", str(path), "--batches", "1", *quick]) == 0
    short = [*quick, "--set", "training.iterations=2"]
    assert main(["simulate", str(path), "-o", str(tmp_path / "simulated"), *short]) == 0


def test_a_missing_package_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    assert main(["doctor", str(path)]) != 0
    assert "a package that is not installed: pip install" in capsys.readouterr().out
