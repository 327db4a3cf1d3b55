"""Rules of the one command about what it refuses; tests/bad_input has the sentences."""

import os
from pathlib import Path

import pytest
from tests.examples.small_models import LLAMA, llama_tensors, write_model
from tests.jobs.asked_doctor import ALONE

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment import finetune as rule
from dynapipe_hpc.experiment.finetune import Finetune


def wish(folder: Path, *sets: str) -> Finetune:
    model = write_model(folder / "model", LLAMA, llama_tensors())
    return Finetune(model, [folder / "chats.jsonl"], folder / "out", sets=sets)


def test_values_are_those_of_a_configuration(tmp_path: Path) -> None:
    rule._check_overrides(wish(tmp_path, "training.epochs=2"))
    with pytest.raises(InputError, match=r"training\.epochs = 0"):
        rule._check_overrides(wish(tmp_path, "training.epochs=0"))


def test_a_run_is_no_folder_of_this_command(tmp_path: Path) -> None:
    asked = wish(tmp_path)
    asked.output.mkdir()
    for name in ("config.toml", "iterations.jsonl"):
        (asked.output / name).write_text("")
    with pytest.raises(InputError, match="out: is the folder of a run"):
        rule._check_places(asked)


def test_a_dataset_of_files_that_were_changed_is_not_used_again(tmp_path: Path) -> None:
    asked = wish(tmp_path)
    [lines] = asked.sources
    lines.write_text('{"inputs": "a", "targets": "b"}\n')
    asked.output.mkdir()
    assert main(["preprocess", str(lines), str(asked.data), "--workers", "1"]) == 0
    rule._check_places(asked)
    made_ns = asked.data.stat().st_mtime_ns
    os.utime(lines, ns=(made_ns + 1, made_ns + 1))
    with pytest.raises(InputError, match=r"was made before \S+chats.jsonl was changed"):
        rule._check_places(asked)


@pytest.mark.parametrize(("code", "is_left"), [(2, False), (1, True)])
def test_only_what_may_be_used_again_is_left(tmp_path: Path, code: int, is_left: bool) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit), rule._nothing_left(ALONE, output):
        output.mkdir()
        raise SystemExit(code)
    assert output.exists() == is_left


def test_a_value_stands_in_its_line() -> None:
    from dynapipe_hpc.experiment.study.propose import _with_value

    text = "[training]\nepochs = 3  # times\nseed = 1\n\n[data]\nseed = 2\n"
    assert _with_value(text, "training.iterations=4").startswith("[training]\niterations = 4\nseed")
    assert "[data]\nseed = 5" in _with_value(text, "data.seed=5")
    assert "[training]\ndtype = 'bfloat16'" in _with_value(text, "training.dtype=bfloat16").replace(
        '"', "'"
    )
    assert _with_value(text, "report.log_every=2").endswith("\n[report]\nlog_every = 2\n")
