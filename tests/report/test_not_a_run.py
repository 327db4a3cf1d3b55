from pathlib import Path

import pytest

from dynapipe_hpc.report.run_folder import not_a_run_error


def folder(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return path


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "it is empty"),
        (("config.json", "model.safetensors", "tokenizer.json"), "it is a model of Hugging Face"),
        (("tokenizer.json",), "it is a tokenizer of Hugging Face"),
        (("adapter_config.json",), "it is adapters for peft"),
        (("checkpoint.json", "huggingface/config.json"), "it is a checkpoint; name the folder of"),
        (("config.toml",), "it is a configuration of which no run has begun here"),
        (("a.h5", "notes.txt"), "it holds datasets or cost tables"),
        (("notes.txt",), "it holds no file of a run"),
        (("a/machine.json", "b/machine.json", "c/x"), "it holds runs; name one: {0}/a, {0}/b"),
        (tuple(f"{k}/machine.json" for k in range(7)), "{0}/4, ... (7)"),
    ],
)
def test_a_folder_is_named_for_what_it_is(
    tmp_path: Path, files: tuple[str, ...], words: str
) -> None:
    path = folder(tmp_path / "x", *files)
    message = str(not_a_run_error(path, "iterations.jsonl: missing"))
    assert message.startswith(f"{path} is not a run folder (iterations.jsonl: missing): ")
    assert words.format(path) in message


def test_a_part_of_a_run_names_the_run(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", "machine.json", "checkpoints/000001/checkpoint.json")
    for part in ("checkpoints", "checkpoints/000001"):
        message = str(not_a_run_error(run / part, "x"))
        assert message.endswith(f"it is part of a run; name {run}")


def test_a_file_and_a_path_of_nothing_are_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "x", "a.h5")
    assert "it is a file; to see what" in str(not_a_run_error(path / "a.h5", "x"))
    assert "it does not exist; name" in str(not_a_run_error(path / "none", "x"))
