"""Words that are nearly right, or those of other tools, are answered with ours."""

from pathlib import Path

import pytest

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.did_you_mean import OF_OTHER_TOOLS
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.experiment.config_keys import _names as known_keys


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["pln"], "plan"),
        (["plan", "x.toml", "--explian"], "--explain"),
        (["preprocess", "a.jsonl", "b.h5", "--tokeniser", "x"], "--tokenizer"),
        (["preprocess", "a.jsonl", "b.h5", "--format", "sharegpt"], "messages"),
        (["preprocess", "a.jsonl", "b.h5", "--format", "alpcaa"], "alpaca"),
    ],
)
def test_a_verb_an_option_and_a_choice_have_a_nearest(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert capsys.readouterr().err.endswith(f"did you mean '{hint}'?\n")


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("training.lr=1", "learning_rate"),
        ("training.max_steps=1", "iterations"),
        ("model.lora={r=8}", "rank"),
        ("model.lora={lora_alpha=8}", "alpha"),
        ('model.lora={targets=["q_proj"]}', "query_key_value"),
        ('model.lora={targets=["wo"]}', "down"),
    ],
)
def test_a_key_of_another_tool_has_ours(
    setting: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(__file__).parents[2] / "configs" / "demo" / "dynamic.toml"
    assert main(["plan", str(config), "--set", setting]) == 2
    assert capsys.readouterr().err.endswith(f"did you mean '{hint}'?\n")


def test_what_is_not_near_has_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["xyzzy"])
    assert "did you mean" not in capsys.readouterr().err


def test_our_words_exist() -> None:
    lora = {"query", "key", "value", "query_key_value", "attention_output", "up", "gate", "down"}
    keys = {name.rpartition(".")[2] for name in known_keys()} | set(Lora.model_fields)
    known = keys | lora | {each.value for each in RecordFormat}
    assert {word for words in OF_OTHER_TOOLS.values() for word in words} <= known
