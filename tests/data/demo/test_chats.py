"""Conversations of the demo corpus."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.demo.corpus import SOUNDS, demo_chats


def test_users_and_assistants_take_turns() -> None:
    n_turns = Counter[int]()
    for chat in demo_chats(200, seed=3):
        roles = [message["role"] for message in chat["messages"]]
        if roles[0] == "system":
            del roles[0]
        n_turns[len(roles) // 2] += 1
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"] for message in chat["messages"])
    assert set(n_turns) == {1, 2, 3}


def test_answers_are_right() -> None:
    n_asked = 0
    for chat in demo_chats(300, seed=1):
        texts = [m["content"] for m in chat["messages"] if m["role"] != "system"]
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            animal = next((a for a in SOUNDS if a in question and ":" not in question), None)
            n_asked += animal is not None
            assert animal is None or SOUNDS[animal] in answer
    assert n_asked > 100


def test_the_file_is_replaced_only_if_it_is_such_a_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.jsonl"
    words = ["demo-corpus", str(path), "--samples", "9", "--seed", "4", "--chat"]
    assert main(words) == 0
    assert [json.loads(line) for line in path.read_text().splitlines()] == list(demo_chats(9, 4))
    assert main([*words, "--force"]) == 0
    path.write_text('{"messages": [], "task": "mine"}\n')
    assert main([*words, "--force"]) == 2
    assert "chat.jsonl" in capsys.readouterr().err
