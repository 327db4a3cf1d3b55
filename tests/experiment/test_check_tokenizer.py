"""Datasets beside the model that a run begins with: of its tokenizer, or refused."""

import json
import re
from pathlib import Path

import pytest
from tests.data.text.test_tokenizers import write_tokenizer
from tests.examples.tokenized import header_in, with_header
from tests.experiment.test_load import COMPLETE

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.check_dataset import describe_library
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config

OTHERS = (
    r"were made by (bytes|other) \(.* tokens\), not by the tokenizer of model.init_from = .*model'"
)
EMBEDDING_ROWS = 300


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with sizes of a GPT-2 and a tokenizer of three tokens."""
    folder = write_tokenizer(tmp_path / "model", "WordLevel")
    sizes = {"n_layer": 4, "n_embd": 24, "n_head": 3, "n_positions": 80}
    config = {"model_type": "gpt2", "vocab_size": EMBEDDING_ROWS, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def preprocessed(folder: Path, *options: str) -> Path:
    """A dataset in a folder."""
    lines = [json.dumps({"inputs": "word word", "targets": "word"})] * 20
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    output = folder / "corpus.h5"
    arguments = [str(folder / "corpus.jsonl"), str(output), "--workers", "1", *options]
    assert main(["preprocess", *arguments]) == 0
    return output


def config_for(model: Path, dataset: Path, *overrides: str) -> ExperimentConfig:
    start, rest = COMPLETE.replace("corpus.h5", str(dataset)).split("[model]")
    path = model.parent / "config.toml"
    path.write_text(f"{start}[model]\ninit_from = '{model}'\n[cluster]{rest.split('[cluster]')[1]}")
    return load_config(path, overrides)


def opens(config: ExperimentConfig) -> bool:
    Experiment(config).dataset.close()
    return True


def test_a_forgotten_tokenizer_is_refused_unless_it_is_meant(model: Path) -> None:
    dataset = preprocessed(model.parent)
    with pytest.raises(InputError, match=rf"{OTHERS}.*preprocess --tokenizer .*model, or"):
        opens(config_for(model, dataset))
    assert opens(config_for(model, dataset, "data.check_tokenizer=false"))


def test_every_verb_that_begins_work_refuses_it(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = preprocessed(model.parent)
    config_for(model, dataset)
    config, first = str(model.parent / "config.toml"), str(model.parent / "first.toml")
    init = ["init", str(dataset), "--ranks", "2", "--memory", "1GB", "--model", str(model)]
    for verb in (["plan", config], [*init, "-o", first], ["doctor", config]):
        assert main(verb) != 0
        said = capsys.readouterr()
        assert "for which the same ids mean other text" in f"{said.out}{said.err}"
        assert "no division" not in said.err


def test_a_token_that_another_file_of_the_folder_adds_changes_nothing(model: Path) -> None:
    added = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {"3": {"content": "<|im_start|>", "special": True}},
    }
    (model / "tokenizer_config.json").write_text(json.dumps(added))
    dataset = preprocessed(model.parent, "--tokenizer", str(model))
    assert header_in(dataset)["vocab_size"] == 4
    assert opens(config_for(model, dataset))


def test_a_token_more_makes_another_vocabulary(model: Path) -> None:
    other = write_tokenizer(model.parent / "other", "WordLevel", "<|im_start|>")
    dataset = preprocessed(model.parent, "--tokenizer", str(other))
    with pytest.raises(InputError, match=OTHERS):
        opens(config_for(model, dataset))


def test_a_model_without_files_of_a_tokenizer_is_not_compared(model: Path) -> None:
    dataset = preprocessed(model.parent)
    (model / "tokenizer.json").unlink()
    assert opens(config_for(model, dataset))
    (model / "spiece.model").write_bytes(b"\n")
    with pytest.raises(InputError, match=OTHERS):
        opens(config_for(model, dataset))


def test_tokens_without_rows_say_how_to_add_them(model: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"vocab_size": 2}
    (model / "config.json").write_text(json.dumps(config))
    dataset = preprocessed(model.parent, "--tokenizer", str(model))
    told = r"3 tokens, but the embedding of .*model' has 2 rows; .*resize_token_embeddings\(3\)"
    with pytest.raises(InputError, match=told):
        opens(config_for(model, dataset))
    with pytest.raises(InputError, match=r"vocab_size is 2 there, not 3 .*embeddings\(3\)"):
        config_for(model, dataset, "model.vocab_size=3")


def test_a_name_of_the_hub_is_no_folder_yet(capsys: pytest.CaptureFixture[str]) -> None:
    init = ["init", "x.h5", "--ranks", "2", "--memory", "1GB", "--model", "Qwen/Qwen2.5-0.5B"]
    assert main([*init, "-o", "first.toml"]) == 2
    assert main(["preprocess", "x.jsonl", "x.h5", "--tokenizer", "openai/gpt2"]) == 2
    said = capsys.readouterr().err
    assert "hf download Qwen/Qwen2.5-0.5B --local-dir FOLDER" in said
    assert "hf download openai/gpt2 --local-dir FOLDER" in said


def test_another_major_version_of_transformers_is_told(model: Path) -> None:
    dataset = preprocessed(model.parent, "--tokenizer", str(model))
    config = config_for(model, dataset)
    with DatasetFile(dataset) as file:
        assert list(describe_library(file)) == []
    with_header(dataset, transformers="3.1.0")
    told = rf"{dataset}: its tokens were made with transformers 3.1.0, but \d.* is installed"
    [line, *_] = Experiment(config).data_lines
    assert re.match(told, line)
