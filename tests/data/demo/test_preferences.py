"""Preference pairs of the demo corpus."""

import json
from pathlib import Path

import pytest

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.demo.corpus import demo_chats, demo_preferences
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, sample_of


def test_the_chosen_answer_is_that_of_the_conversation_and_the_other_is_not() -> None:
    for pair, chat in zip(demo_preferences(50, 3), demo_chats(50, 3), strict=True):
        assert [*pair["prompt"], *pair["chosen"]] == chat["messages"]
        [[chosen], [rejected]] = pair["chosen"], pair["rejected"]
        assert rejected["role"] == "assistant"
        assert rejected["content"] not in ("", chosen["content"])
        sample_of(dict(pair), RecordFormat.CHAT_PREFERENCES, PAIR_FIELDS)


def test_the_file_is_replaced_only_if_it_is_such_a_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.jsonl"
    words = ["demo-corpus", str(path), "--samples", "9", "--seed", "4", "--preferences"]
    assert main(words) == 0
    pairs = [json.loads(line) for line in path.read_text().splitlines()]
    assert pairs == list(demo_preferences(9, 4))
    assert main([*words, "--force"]) == 0
    path.write_text('{"prompt": [], "chosen": [], "rejected": [], "task": "mine"}\n')
    assert main([*words, "--force"]) == 2
    assert main([*words, "--chat"]) == 2
    assert "--chat and --preferences are two kinds of samples" in capsys.readouterr().err
