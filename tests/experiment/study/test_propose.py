"""First configurations: they plan, fit into memory, and replace nothing."""

import tomllib
from pathlib import Path

import pytest
from tests.examples.small_models import LLAMA, llama_tensors, write_model
from tests.examples.tokenized import write_samples

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.study import propose as rule
from dynapipe_hpc.plan.cluster import Cluster


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """1,998 samples of 20 tokens and one of 300, of 500 different tokens."""
    samples = [*[([1] * 10, [9] * 10, "short")] * 1998, ([1] * 290, [9] * 10, "long")]
    return write_samples(tmp_path / "x.h5", samples, vocab_size=500)


def init(dataset: Path, *options: str, memory: str = "1GB", ranks: int = 4) -> int:
    output = str(dataset.with_name("first.toml"))
    arguments = ["--ranks", str(ranks), "--memory", memory, "-o", output, *options]
    return main(["init", str(dataset), *arguments])


def test_a_proposal_suits_dataset_and_ranks(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(dataset, ranks=2) == 0
    path = dataset.with_name("first.toml")
    tables = tomllib.loads(path.read_text())
    assert tables["data"]["max_tokens"] == 20
    assert "1 longer samples are cut" in path.read_text()
    assert tables["data"]["tokens_per_batch"] == 2 * 8192
    assert tables["model"]["vocab_size"] == 500
    assert tables["cluster"]["n_replicas"] == 2
    assert main(["plan", str(path)]) == 0
    assert "rank 1 (replica 1, stage 0)" in capsys.readouterr().out


def test_a_model_that_one_rank_cannot_hold_is_divided(dataset: Path) -> None:
    # 8 layers of 12 * 256 ** 2 weights and gradients of 4 bytes, and a share of the moments.
    assert 8 * 12 * 256**2 * (8 + 8 / 4) > 60e6
    assert init(dataset, memory="60MB") == 0
    cluster = tomllib.loads(dataset.with_name("first.toml").read_text())["cluster"]
    assert cluster["n_replicas"] * cluster["n_stages"] * cluster["n_shards"] == 4
    assert cluster["n_replicas"] < 4
    assert cluster["zero_stage"] == int(cluster["n_replicas"] > 1)


def test_the_division_that_is_predicted_fastest_is_proposed(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = (2, 2), (1, 4), (4, 1)
    divisions = [Cluster(n_replicas=n, n_stages=m, device_memory_bytes=10**9) for n, m in shares]
    tried = list(zip(divisions, (3.0, 1.0, 2.0), strict=True))
    monkeypatch.setattr(rule, "_tried", lambda *_: (tried, []))
    assert init(dataset) == 0
    cluster = tomllib.loads(dataset.with_name("first.toml").read_text())["cluster"]
    assert (cluster["n_replicas"], cluster["n_stages"]) == (1, 4)


def test_a_model_is_tuned_with_rates_of_tuning_on_samples_that_are_not_cut(dataset: Path) -> None:
    config = {**LLAMA, "vocab_size": 500, "max_position_embeddings": 512}
    model = write_model(dataset.with_name("model"), config, llama_tensors())
    assert init(dataset, "--model", str(model), memory="76GB") == 0
    text = dataset.with_name("first.toml").read_text()
    tables = tomllib.loads(text)
    assert tables["data"]["max_tokens"] == 300
    assert "cut" not in text
    assert tables["training"]["dtype"] == "bfloat16"
    assert (tables["training"]["learning_rate"], tables["training"]["weight_decay"]) == (2e-5, 0)
    assert tables["planner"]["cost"]["flops_per_ms"] == 2e11
    assert tables["planner"]["batch"]["layouts"] == ["padded", "packed"]
    assert tables["evaluation"]["held_out"] == pytest.approx(50 / 1999, rel=2e-2)


@pytest.mark.parametrize(("iterations", "warmup", "every"), [(1, 1, 1), (200, 6, 40)])
def test_warm_up_and_evaluations_suit_the_iterations_that_the_user_sets(
    dataset: Path, iterations: int, warmup: int, every: int
) -> None:
    output = dataset.with_name("first.toml")
    sets = [f"training.iterations={iterations}"]
    rule.propose(rule.Wish(dataset, 1, "1GB", sets=sets), output)
    config = load_config(output)
    assert config.training.warmup_iterations == warmup
    assert config.evaluation is not None
    assert config.evaluation.every == config.checkpoint.every == every


@pytest.mark.parametrize(
    ("memory", "ranks", "message"),
    [
        ("1MB", 2, "no division of the model over 2 ranks of 1MB can be planned"),
        (
            "2",
            2,
            "--memory '2': is 2 bytes, too few for any model; write the unit, too, such as 2GB",
        ),
        ("1XB", 2, "--memory '1XB': must be a size such as 80GB"),
    ],
)
def test_a_wish_that_cannot_be_met_leaves_no_file(
    dataset: Path, capsys: pytest.CaptureFixture[str], memory: str, ranks: int, message: str
) -> None:
    assert init(dataset, memory=memory, ranks=ranks) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in dataset.parent.iterdir()] == ["x.h5"]


def test_a_file_is_not_replaced(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset.with_name("first.toml").write_text("mine")
    assert init(dataset) == 2
    assert "first.toml: already exists" in capsys.readouterr().err
    assert dataset.with_name("first.toml").read_text() == "mine"


def test_of_few_samples_some_are_held_out_and_some_are_not(tmp_path: Path) -> None:
    for n_samples in range(1, 9):
        lines, data = tmp_path / f"{n_samples}.jsonl", tmp_path / f"{n_samples}.h5"
        lines.write_text('{"inputs": "a", "targets": "b"}\n' * n_samples)
        assert main(["preprocess", str(lines), str(data), "--workers", "1"]) == 0
        config = data.with_suffix(".toml")
        if n_samples == 1:
            with pytest.raises(InputError, match="has one sample, but one is held out"):
                rule.propose(rule.Wish(data, 1, "2GB"), config)
            continue
        rule.propose(rule.Wish(data, 1, "2GB"), config)
        evaluation = Experiment(load_config(config)).evaluation
        assert evaluation is not None
        assert 0 < len(evaluation.samples) < n_samples
