"""Mistakes of a beginner with `finetune`: a sentence, and nothing left behind."""

import json
from pathlib import Path

import pytest
from tests.bad_input.worker import Worker

from dynapipe_hpc.cli.main import main


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and chats, and what is wrong with others."""
    folder = tmp_path_factory.mktemp("finetune")
    chats = folder / "chats.jsonl"
    command = ["demo-corpus", str(chats), "--samples", "20", "--chat"]
    assert main([*command, "--model", str(folder / "model")]) == 0
    (folder / "silent").mkdir()
    for file in (folder / "model").iterdir():
        (folder / "silent" / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "silent" / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "silent" / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text('{"model_type": "bert"}')
    (folder / "nothing").mkdir()
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text('{"messages": [\n')
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    (folder / "run").mkdir()
    for name in ("config.toml", "iterations.jsonl"):
        (folder / "run" / name).write_text("")
    return folder


MISTAKES = {
    "a name of the hub": (("meta/llama", "chats.jsonl"), "hf download meta/llama --local-dir"),
    "no model": (("nothing", "chats.jsonl"), "nothing: is a folder, but has neither config.json"),
    "no such type": (("bert", "chats.jsonl"), "'model_type' is 'bert', which is not supported"),
    "no template": (("silent", "chats.jsonl"), "silent: has no chat template, which chats need"),
    "no file": (("model", "chat.jsonl"), "chat.jsonl: no such file"),
    "nothing in it": (("model", "empty.jsonl"), "empty.jsonl: no sample to write"),
    "no JSON": (("model", "broken.jsonl"), "broken.jsonl:1: not JSON"),
    "no size": (("model", "chats.jsonl", "--memory", "much"), "device_memory_bytes = 'much'"),
    "no key": (("model", "chats.jsonl", "--set", "training.rate=1"), "unknown key 'training.rate'"),
    "no number": (
        ("model", "chats.jsonl", "--set", "training.epochs=some"),
        "training.epochs = 'some'",
    ),
    "a long sample": (
        ("model", "chats.jsonl", "--set", "data.max_tokens=9999"),
        "but model.max_tokens (1024) is less",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_and_nothing_is_left(
    worker: Worker, inputs: Path, tmp_path: Path, mistake: str
) -> None:
    arguments, message = MISTAKES[mistake]
    ended = worker.call(inputs, ("finetune", *arguments, "-o", str(tmp_path / "out")))
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_is_refused_when_the_dataset_is_made(
    worker: Worker, inputs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = ("model", "chats.jsonl", "--memory", "2MB", "-o", str(output))
    ended = worker.call(inputs, ("finetune", *arguments))
    assert ended.exit_code == 2
    assert "no division of the model over 1 ranks of 2MB can be planned" in ended.stderr
    assert [path.name for path in output.iterdir()] == ["data.h5"]


@pytest.mark.parametrize(
    ("output", "message"),
    [("mine", "mine: holds other files"), ("run", "run: is the folder of a run")],
)
def test_a_folder_of_something_else_is_left_alone(
    worker: Worker, inputs: Path, output: str, message: str
) -> None:
    before = sorted((path.name, path.read_bytes()) for path in (inputs / output).iterdir())
    ended = worker.call(inputs, ("finetune", "model", "chats.jsonl", "-o", output))
    assert (ended.exit_code, message in ended.stderr) == (2, True)
    after = sorted((path.name, path.read_bytes()) for path in (inputs / output).iterdir())
    assert after == before
