"""Configurations that begin with the weights of a model, and datasets beside its tokenizer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.data.text.test_tokenizers import write_tokenizer
from tests.examples.tokenized import header_in
from tests.experiment.test_load import COMPLETE
from tests.jobs.command_line import run_without

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.training.checkpoint.folder import Description
from dynapipe_hpc.training.counters import Counters

OTHERS = (
    r"were made by (bytes|other) \(.* tokens\), not by the tokenizer of model.init_from = .*model'"
)
EMBEDDING_ROWS = 300


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with sizes of a GPT-2 and a tokenizer of three tokens."""
    folder = write_tokenizer(tmp_path / "model")
    sizes = {"n_layer": 4, "n_embd": 24, "n_head": 3, "n_positions": 80}
    config = {"model_type": "gpt2", "vocab_size": EMBEDDING_ROWS, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def preprocessed(folder: Path, *options: str) -> Path:
    lines = [json.dumps({"inputs": "word word", "targets": "word"})] * 20
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    output = folder / "corpus.h5"
    arguments = [str(folder / "corpus.jsonl"), str(output), "--workers", "1", *options]
    assert main(["preprocess", *arguments]) == 0
    return output


def write_config(model: Path, keys: str = "", dataset: str = "corpus.h5") -> Path:
    """A configuration whose [model] table names a folder, and what else is given."""
    start, rest = COMPLETE.replace("corpus.h5", dataset).split("[model]")
    cluster = rest.partition("[cluster]")[2]
    path = model.parent / "config.toml"
    path.write_text(f"{start}[model]\ninit_from = '{model}'\n{keys}\n[cluster]{cluster}")
    return path


def config_for(model: Path, dataset: Path, *overrides: str) -> ExperimentConfig:
    return load_config(write_config(model, dataset=str(dataset)), overrides)


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
    alone = preprocessed(model.parent, "--tokenizer", str(model / "tokenizer.json"), "--force")
    assert opens(config_for(model, alone))


def test_a_token_more_makes_another_vocabulary(model: Path) -> None:
    other = write_tokenizer(model.parent / "other", "<|im_start|>")
    dataset = preprocessed(model.parent, "--tokenizer", str(other))
    with pytest.raises(InputError, match=OTHERS):
        opens(config_for(model, dataset))


def test_other_files_of_the_same_tokens_are_no_other_tokenizer(model: Path) -> None:
    dataset = preprocessed(model.parent, "--tokenizer", str(model / "tokenizer.json"))
    assert opens(config_for(model, dataset))
    with (model / "tokenizer.json").open("a") as file:
        file.write("\n")
    assert opens(config_for(model, dataset))
    (model / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"not a tokenizer file.*set data.check_tokenizer to fal"):
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


GPT2 = {"model_type": "gpt2", "n_layer": 6, "n_embd": 24, "n_head": 3}
GPT2 |= {"vocab_size": 301, "n_positions": 80, "layer_norm_epsilon": 1e-4}
T5 = {"model_type": "t5", "num_layers": 2, "d_model": 24, "num_heads": 3}
T5 |= {"d_kv": 7, "d_ff": 50, "vocab_size": 301}
COMMAND = "from dynapipe_hpc.cli.main import main; sys.exit(main(sys.argv[1:]))"


def config_naming(folder: Path, settings: dict[str, Any], model: str = "") -> Path:
    (folder / "theirs").mkdir()
    (folder / "theirs/config.json").write_text(json.dumps(settings))
    return write_config(folder / "theirs", model)


def test_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    config = load_config(config_naming(tmp_path, GPT2))
    assert config.model.model_dump(exclude_none=True, exclude={"init_from"}) == {
        "family": "gpt",
        "n_layers": 6,
        "hidden_size": 24,
        "n_heads": 3,
        "ffn_size": 96,
        "vocab_size": 301,
        "max_tokens": 80,
        "norm_epsilon": 1e-4,
        "tied_head": True,
        "dropout": 0.1,
    }


def test_sizes_that_differ_are_all_named(tmp_path: Path) -> None:
    path = config_naming(tmp_path, GPT2, "hidden_size = 32\nn_layers = 6\nnorm_epsilon = 1e-5")
    with pytest.raises(InputError) as caught:
        load_config(path, ["model.max_tokens=64"])
    told = str(caught.value)
    assert "hidden_size is 24 there, not 32; max_tokens is 80 there, not 64;" in told
    assert "norm_epsilon is 0.0001 there, not 1e-05;" in told
    assert "n_layers" not in told


def test_what_training_drops_is_as_there_or_as_you_like(tmp_path: Path) -> None:
    path = config_naming(tmp_path, T5 | {"dropout_rate": 0.3})
    assert load_config(path).model.dropout_rate == 0.3
    assert load_config(path, ["model.dropout=0.0"]).model.dropout_rate == 0.0


def test_a_checkpoint_says_what_model_it_is(tmp_path: Path) -> None:
    path = config_naming(tmp_path, GPT2)
    model = load_config(path).model.model_dump(exclude={"init_from", "layers_per_stage"})
    facts = {f"model.{key}": value for key, value in model.items()}
    run = tmp_path / "run/checkpoints"
    for n_done in (7, 12):
        (run / f"{n_done:06d}").mkdir(parents=True)
        counters = Counters(n_done, n_done, 1.0, 0, 0)
        Description(n_done, counters, facts, ("x",)).write(run / f"{n_done:06d}")
    found = load_config(path, [f"model.init_from='{tmp_path / 'run'}'"]).model
    assert found.hidden_size == 24
    assert found.init_from == str(run / "000012")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "nowhere: is not a folder"),
        ("", "model.init_from = ''"),
        ("empty", "has neither config.json"),
        ("run", "is a run without a complete checkpoint"),
    ],
)
def test_a_path_without_a_model_is_refused(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    path = config_naming(tmp_path, GPT2)
    with pytest.raises(InputError, match=told):
        load_config(path, [f"model.init_from='{tmp_path / name if name else ''}'"])


def test_plans_need_neither_weights_nor_torch(tmp_path: Path) -> None:
    config_naming(tmp_path, GPT2)
    (tmp_path / "lengths.json").write_text(json.dumps({"batches": [[5, 32, 9, 17]]}))
    arguments = ["plan", "config.toml", "--lengths", "lengths.json", "--json", "plans.json"]
    ended = run_without(("torch", "safetensors"), COMMAND, *arguments, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_the_way_to_begin_with_adapters_is_named(tmp_path: Path) -> None:
    path = config_naming(tmp_path, T5)
    facts = {f"model.{key}": value for key, value in load_config(path).model.sizes.items()}
    (tmp_path / "tuned").mkdir()
    adapted = {**facts, "model.lora": {"rank": 2}}
    Description(4, Counters(4, 4, 1.0, 0, 0), adapted, ("x",)).write(tmp_path / "tuned")
    command = f"dynapipe-hpc export {tmp_path / 'tuned'} -o FOLDER --base MODEL"
    with pytest.raises(InputError, match=re.escape(f"({command}), and name FOLDER")):
        load_config(path, [f"model.init_from={str(tmp_path / 'tuned')!r}"])
