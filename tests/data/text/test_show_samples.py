"""Samples as `inspect --show` prints them."""

import json
from pathlib import Path

import pytest
import tokenizers
from tests.examples.tokenized import write_samples
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import recipe_of
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.show_samples import show_samples
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import ByteTokenizer, load_tokenizer

IDS = [
    "sample 0 of task sum: 5 tokens, 3 of them trained",
    "  trained  1",
    "  read     2 3",
    "  trained  4 9",
    "sample 1 of task copy: 1 tokens, 1 of them trained",
    "  trained  9",
    "sample 2 of task sum: 5 tokens, 4 of them trained",
    "  read     5",
    "  trained  6 7 8 9",
]


def test_without_a_tokenizer_token_ids_are_shown(tmp_path: Path) -> None:
    spans = [[(0, 1), (3, 5)], [], []]
    path = write_samples(tmp_path / "x.h5", spans=spans)
    assert show_samples(path, 3, None).splitlines() == IDS
    assert show_samples(path, 1, None).splitlines() == IDS[:4]


def test_a_first_token_that_nothing_predicts_is_only_read(tmp_path: Path) -> None:
    """Of a sample without input, as of plain text; the first assistant's turn may begin there."""
    samples, spans = [([], [5, 6], "a"), ([5, 6], [7], "b")], [[], [(0, 2), (2, 3)]]
    path = write_samples(tmp_path / "x.h5", samples, spans=spans, has_start=False)
    assert show_samples(path, 2, None).splitlines() == [
        "sample 0 of task a: 2 tokens, 1 of them trained",
        "  read     5",
        "  trained  6",
        "sample 1 of task b: 3 tokens, 2 of them trained",
        "  read     5",
        "  trained  6 7",
    ]


def test_text_is_shown_with_the_tokenizer_that_made_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"[user]": 0, "a\n": 1, "[bot]": 2, "b": 3, "</s>": 4}
    for name, vocabulary in (("one", words), ("other", {**words, "x": 5})):
        model = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="b"))  # noqa: S106
        model.add_special_tokens(["[user]", "[bot]", "</s>", "a\n"])
        model.decoder = Fuse()
        model.save(str(tmp_path / name))
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration %}"
        "{% endfor %}".replace("{{ m.role }}", "{{ 'bot' if m.role == 'assistant' else 'user' }}")
    )
    record = {"messages": [{"role": r, "content": c} for r, c in (("x", ""), ("assistant", "b"))]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    files = read_tokenizer([tmp_path / "one"])
    messages = RecordFormat.MESSAGES
    recipe = recipe_of(load_tokenizer(files), files, messages, template=tmp_path / "t.jinja")
    output = tmp_path / "x.h5"
    preprocess([tmp_path / "in.jsonl"], output, recipe, PreprocessOptions(n_workers=1))
    arguments = ["inspect", str(output), "--show", "5", "--tokenizer"]
    assert main([*arguments, str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(
        "sample 0 of task default: 3 tokens, 1 of them trained\n"
        "  read     [user][bot]\n"
        "  trained  b\n"
    )
    assert main([*arguments, str(tmp_path / "other")]) == 2
    assert "x.h5: its tokens are those of one with sha256" in capsys.readouterr().err


def test_bytes_are_shown_as_text(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"inputs": "é\\n", "targets": "b"}')
    recipe = recipe_of(ByteTokenizer(), None, RecordFormat.PAIRS)
    output = tmp_path / "x.h5"
    preprocess([tmp_path / "in.jsonl"], output, recipe, PreprocessOptions(n_workers=1))
    assert show_samples(output, 1, None).splitlines()[1:] == [
        "  read     é\\n",
        "  trained  b<end>",
    ]
