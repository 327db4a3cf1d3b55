from pathlib import Path

import pytest
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.explain.describe_file import describe_for
from dynapipe_hpc.experiment.load import to_toml


def experiment(**model: object) -> ExperimentConfig:
    tables = tiny_experiment(n_stages=2).model_dump()
    tables["model"].update(model)
    tables["planner"]["cost"]["recompute"] = ["none", "full"]
    tables["cluster"]["device_memory_bytes"] = 1_000_000
    return ExperimentConfig.model_validate(tables)


def test_inspect_tells_the_longest_sample_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")])
    config = tmp_path / "config.toml"
    config.write_text(to_toml(experiment(max_tokens=2048)))
    assert main(["inspect", str(dataset), "--config", str(config)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("tokens of at most 2,048; the dataset's longest 24")
    none, full = (int(last.split(mode)[1].split()[0].strip(",")) for mode in ("none ", "full "))
    assert 0 < none < full


def test_of_a_t5_either_side_is_told_beside_the_longest_of_the_other(tmp_path: Path) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "a"), ([2], [3] * 9 + [9], "b")])
    config = experiment(family="t5", head_size=8)
    _, inputs, targets = describe_for(config, dataset).splitlines()
    assert inputs.startswith("inputs, beside targets of 16 tokens: none ")
    assert targets.startswith("targets, beside inputs of 24 tokens: none ")
