"""Samples that are cut are counted where a configuration meets a dataset."""

from pathlib import Path

import pytest
from tests.oracles.tiny_experiment import tiny_experiment
from tests.oracles.tokenized import write_samples

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.dataset_file import DatasetFile
from dynapipe_hpc.experiment.describe_cut import describe_cut
from dynapipe_hpc.experiment.load import to_toml

SAMPLES = [([1] * 20, [9], "whole"), ([1] * 40, [9], "long"), ([1], [2] * 34 + [9], "long")]
CUT = (
    "2 of 3 samples are longer than data.max_tokens (32) and are cut to it, which leaves out 13 "
    "of 98 tokens"
)


@pytest.mark.parametrize(("max_tokens", "lines"), [(32, [CUT]), (41, []), (100, [])])
def test_samples_beyond_the_limit_are_counted(
    tmp_path: Path, max_tokens: int, lines: list[str]
) -> None:
    with DatasetFile(write_samples(tmp_path / "x.h5", SAMPLES)) as dataset:
        assert describe_cut(dataset, max_tokens) == lines


def test_inspect_and_plan_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, config = tmp_path / "x.h5", tmp_path / "config.toml"
    write_samples(dataset, SAMPLES)
    config.write_text(to_toml(tiny_experiment()).replace("none.h5", str(dataset)))
    assert main(["inspect", str(dataset), "--config", str(config)]) == 0
    assert CUT in capsys.readouterr().out
    assert main(["plan", str(config)]) == 0
    assert CUT in capsys.readouterr().out
