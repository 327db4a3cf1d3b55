"""Text that small models write."""

import json
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from tests.examples.foreign_models import N_IDS, saved_model
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.training.generate import Sampling
from dynapipe_hpc.training.huggingface.import_export import import_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_model("gpt2", tmp_path / "theirs")
    words = {f"w{i}": i for i in range(N_IDS - 1)} | {"</s>": N_IDS - 1}
    model = tokenizers.Tokenizer(WordLevel(words, unk_token="w0"))  # noqa: S106
    model.pre_tokenizer = Whitespace()
    model.save(str(tmp_path / "theirs/tokenizer.json"))
    (tmp_path / "theirs/tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    import_model(tmp_path / "theirs", tmp_path / "ours")
    return tmp_path


def test_text_continues_as_in_transformers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", str(folder / "ours"), "--prompt", "w5 w9 w7", "--tokens", "9"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.split() == their_words(folder, [N_IDS - 1, 5, 9, 7])


def their_words(folder: Path, ids: list[int]) -> list[str]:
    """Words that `transformers` writes after these."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "theirs")
    settings = {"do_sample": False, "max_new_tokens": 9, "eos_token_id": N_IDS - 1}
    found = model.generate(torch.tensor([ids]), **settings)[0, len(ids) :]
    return [f"w{i}" for i in found.tolist() if i != N_IDS - 1]


def test_a_chat_continues_after_what_the_template_of_transformers_writes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = (
        "{% for m in messages %}w3 {{ m.content }}{% generation %}{% endgeneration %} w4 "
        "{% endfor %}{% if add_generation_prompt %}w6{% endif %}"
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "chat_template": template,
    }
    for model in ("theirs", "ours"):
        (folder / model / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "theirs")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "w5 w9"}], add_generation_prompt=True, return_dict=False
    )
    assert ids == [3, 5, 9, 4, 6]
    arguments = ["generate", str(folder / "theirs"), "--prompt", "w5 w9", "--tokens", "9", "--chat"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.split() == their_words(folder, ids)


def test_a_token_without_a_row_of_the_embedding_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the name of a class, `transformers` adds GPT-2's own end of a text."""
    (folder / "theirs/tokenizer_config.json").unlink()
    assert main(["generate", str(folder / "theirs"), "--prompt", "w5"]) == 2
    told = f"--prompt has token {N_IDS} of the tokenizer theirs, but the embedding of "
    assert told in capsys.readouterr().err


def test_text_ends_where_the_model_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", str(folder / "ours"), "--prompt", "w5 w9 w7", "--tokens", "9"]
    assert main(arguments) == 0
    words = capsys.readouterr().out.split()
    ends = [N_IDS - 1, int(words[2][1:])]
    config = folder / "ours/huggingface/generation_config.json"
    config.write_text(json.dumps({"eos_token_id": ends}))
    assert main(arguments) == 0
    assert capsys.readouterr().out.split() == words[: words.index(words[2])]


def test_bad_arguments_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(folder / "ours"), "--prompt"]
    assert main([*words, "w1 " * 70]) == 2
    assert "--prompt exceeds 64 tokens" in capsys.readouterr().err
    for option, value in (("tokens", "0"), ("temperature", "-1"), ("top-p", "0"), ("seed", "-1")):
        with pytest.raises(SystemExit):
            main([*words, "w5", f"--{option}", value])
        assert f"argument --{option}: {value}: must be " in capsys.readouterr().err


def test_sampling_has_the_shares_of_its_tokens() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()

    def shares(sampling: Sampling) -> list[float]:
        choose = sampling.chooser()
        chosen = torch.tensor([choose(logits) for _ in range(4000)])
        found: list[float] = (torch.bincount(chosen, minlength=4) / 4000).tolist()
        return found

    assert shares(Sampling(1.0, 1.0, 3)) == pytest.approx([0.1, 0.5, 0.15, 0.25], abs=0.03)
    assert shares(Sampling(1.0, 0.7, 3)) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=0.03)
    sharper = [0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345, 0.0625 / 0.345]
    assert shares(Sampling(0.5, 1.0, 3)) == pytest.approx(sharper, abs=0.03)
    assert shares(Sampling(1.0, 1e-6, 3)) == [0, 1, 0, 0]
    assert Sampling().chooser()(logits) == 1
