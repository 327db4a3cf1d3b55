"""`inspect FOLDER`: the families that can train a model, or why none can."""

import json
from pathlib import Path

import pytest
from tests.examples.any_decoders import saved_decoder
from tests.examples.tokenized import write_samples

from dynapipe_hpc.cli.main import main


def inspected(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["inspect", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_decoder_without_a_family_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved_decoder("gemma2", tmp_path, attention_dropout=0.5)
    n = sum(weight.numel() for weight in model.parameters())
    what, *details = inspected(tmp_path, capsys)
    assert what == f"{tmp_path} (gemma2 of Hugging Face): {n:,} weights, 4 layers"
    family = 'family = "transformers": '
    assert details[0].startswith(f"{family}layers of transformers 5.")
    assert details[1:] == [
        f"{family}windows of 6 tokens in 2 of 4 layers",
        f"{family}scores with a soft cap of 2, all of which backward keeps",
        f"{family}nothing is dropped, in spite of attention_dropout",
    ]


def test_a_decoder_of_two_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_decoder("llama", tmp_path)
    _, own, theirs = inspected(tmp_path, capsys)
    assert own == 'family = "llama": layers of this package'
    assert theirs.startswith('family = "transformers": layers of transformers')


def test_a_model_that_no_family_trains_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_decoder("gemma2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "is_causal": False}))
    assert main(["inspect", str(tmp_path)]) == 2
    assert "its attention is not causal" in capsys.readouterr().err


def test_layers_are_built_to_see_what_they_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_decoder("llama", tmp_path, mlp_bias=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "stablelm"}))
    assert main(["inspect", str(tmp_path)]) == 2
    assert "StableLmForCausalLM of transformers has other weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--show", "-1"], "--show -1: must be at least 1"),
        (["--tokenizer", "NOTHING"], "--tokenizer is used with --show only; add --show N"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")])
    assert main(["inspect", str(dataset), *options]) == 2
    said = capsys.readouterr()
    assert (told in said.err, said.out) == (True, "")
