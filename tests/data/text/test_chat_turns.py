"""Turns that a template writes otherwise when others follow: samples as the model will see them."""

import json
import re
from pathlib import Path

import pytest
from tests.examples.chats import CHATML, chat, refusal, shown, tokenized

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.text.chat_turns import Turns

DROPS_REASONING = """\
{%- set last = namespace(user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
    {{- '<' + m.role + '>' }}
    {%- if m.role == 'assistant' and loop.index0 > last.user %}
        {{- '<think>' + m.reasoning_content | default('') + '</think>' }}
    {%- endif %}
    {{- m.content + '</>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}
"""
"""Reasoning is shown after the last message of the user only, as by Qwen3."""
TWO = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "1"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "2"},
    ]
}


def test_a_turn_that_changes_is_a_sample_as_the_model_sees_it_when_it_answers() -> None:
    assert shown(TWO, DROPS_REASONING) == [
        "<user>a</><assistant>[<think>1</think>b</>]",
        "<user>a</><assistant>b</><user>c</><assistant>[<think>2</think>d</>]",
    ]


def test_the_last_turn_alone_can_be_trained() -> None:
    assert shown(TWO, DROPS_REASONING, Turns.LAST) == [
        "<user>a</><assistant>b</><user>c</><assistant>[<think>2</think>d</>]"
    ]
    assert shown(chat("a", "b", "c", "d", "e"), turns=Turns.LAST) == [
        "<user>a</><assistant>b</><user>c</><assistant>[d</>]<user>e</>"
    ]


def test_all_turns_can_be_trained_as_they_stand_in_the_whole_text() -> None:
    assert shown(TWO, DROPS_REASONING, Turns.WHOLE) == [
        "<user>a</><assistant>[b</>]<user>c</><assistant>[<think>2</think>d</>]"
    ]


def test_turns_after_the_last_message_of_the_user_share_a_sample() -> None:
    messages = [*TWO["messages"][:2], {"role": "tool", "content": "t"}, TWO["messages"][3]]
    expected = (
        "<user>a</><assistant>[<think>1</think>b</>]<tool>t</><assistant>[<think>2</think>d</>]"
    )
    assert shown({"messages": messages}, DROPS_REASONING) == [expected]
    assert shown({"messages": [*messages, *TWO["messages"][2:]]}, DROPS_REASONING) == [
        expected,
        "<user>a</><assistant>b</><tool>t</><assistant>d</><user>c</>"
        "<assistant>[<think>2</think>d</>]",
    ]


def test_blank_lines_at_the_end_do_not_make_turns_change() -> None:
    assert shown(chat("a", "b", "c", "d"), CHATML + "\n\n") == [
        "<user>a</><assistant>[b</>]<user>c</><assistant>[d</>\n]"
    ]


NEEDS_A_USER = (
    "{%- if 'user' not in messages | map(attribute='role') %}"
    "{{- raise_exception('no user') }}{%- endif %}" + CHATML
)


def test_a_turn_before_the_first_message_of_the_user_is_read_where_the_template_asks_for_none() -> (
    None
):
    record = {"messages": [{"role": "assistant", "content": "hi"}, *chat("a", "b")["messages"]]}
    assert shown(record) == ["<assistant>[hi</>]<user>a</><assistant>[b</>]"]
    assert shown(record, NEEDS_A_USER) == ["<assistant>hi</><user>a</><assistant>[b</>]"]
    assert shown(record, NEEDS_A_USER, Turns.WHOLE) == [
        "<assistant>[hi</>]<user>a</><assistant>[b</>]"
    ]
    [(note, n)] = tokenized([record], NEEDS_A_USER).notes.items()
    assert (note[:20], n) == ("a turn is only read:", 1)
    alone = {"messages": record["messages"][:1]}
    assert re.search("t refuses the messages: .*no user", refusal(alone, NEEDS_A_USER))


def test_a_generation_prompt_that_begins_reasoning_is_no_part_of_a_turn_without() -> None:
    source = CHATML.replace("{{- '<assistant>' }}", "{{- '<assistant><think>' }}")
    for answer in ("b", "<b"):
        made = tokenized([chat("a", answer)], source)
        assert shown(chat("a", answer), source) == [f"<user>a</><assistant>[{answer}</>]"]
        assert made.notes == {"the model is asked with '<think>', but trained without it": 1}
    record = chat("a", "<think>1</think>b")
    assert shown(record, source) == ["<user>a</><assistant><think>[1</think>b</>]"]
    assert not tokenized([record], source).notes


MARKED = DROPS_REASONING.replace(
    "    {{- m.content + '</>' }}\n",
    "    {%- if m.role == 'assistant' %}{%- generation %}{{- m.content }}{%- endgeneration %}"
    "{%- else %}{{- m.content }}{%- endif %}{{- '</>' }}\n",
)


def test_marks_of_a_template_make_the_same_samples() -> None:
    assert shown(TWO, MARKED) == [
        "<user>a</><assistant><think>1</think>[b]</>",
        "<user>a</><assistant>b</><user>c</><assistant><think>2</think>[d]</>",
    ]
    whole = "<user>a</><assistant>{}</><user>c</><assistant><think>2</think>[d]</>"
    assert shown(TWO, MARKED, Turns.LAST) == [whole.format("b")]
    assert shown(TWO, MARKED, Turns.WHOLE) == [whole.format("[b]")]
    messages = [TWO["messages"][0], {**TWO["messages"][1], "weight": 0}, *TWO["messages"][2:]]
    assert shown({"messages": messages}, MARKED, Turns.WHOLE) == [whole.format("b")]
    assert shown({"messages": messages}, MARKED) == [whole.format("b")]


def test_nested_marks_count_once() -> None:
    source = (
        "{% for m in messages %}{% generation %}({% generation %}{{ m.content }}"
        "{% endgeneration %}){% endgeneration %}{% endfor %}"
    )
    assert shown(chat("a", "b"), source) == ["[(a)][(b)]"]


def test_a_turn_that_cannot_be_located_is_refused() -> None:
    source = "{% for m in messages %}{{ m.content if loop.last else '-' }};{% endfor %}"
    for turns in (Turns.EACH, Turns.WHOLE):
        words = r"in\.jsonl:7: t renders messages before and after messages\[1\] differently .*FILE"
        assert re.search(words, refusal(chat("a", "b", "c", "d"), source, turns))


def written(folder: Path) -> list[str]:
    (folder / "t.jinja").write_text(DROPS_REASONING)
    lines = [json.dumps(record) for record in (TWO, chat("a", "b"), TWO)]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return [
        *("preprocess", str(folder / "in.jsonl"), str(folder / "x.h5"), "--workers", "1"),
        *("--template", str(folder / "t.jinja")),
    ]


def test_preprocess_says_how_many_samples_came_of_how_many_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = written(tmp_path)
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert re.search(r": 5 samples, .*\n5 samples of 3 conversations: a turn that", printed)
    with DatasetFile(tmp_path / "x.h5") as dataset:
        assert (dataset.n_samples, dataset.header.turns) == (5, "each")
    assert main(["inspect", str(tmp_path / "x.h5")]) == 0
    assert "\nturns      each (preprocess --turns)\n" in capsys.readouterr().out
    assert main([*command, "--force", "--turns", "last"]) == 0
    assert "conversations" not in capsys.readouterr().out
    with DatasetFile(tmp_path / "x.h5") as dataset:
        assert (dataset.n_samples, dataset.header.turns) == (3, "last")


def test_a_bad_sample_leaves_out_all_of_its_record() -> None:
    source = (
        "{% for m in messages %}{{ '.' if messages | length > 1 or m.role == 'user' }}"
        "{{ m.content }}{% endfor %}"
    )
    bad = {"messages": [{"role": "assistant", "content": "b"}, *chat("c", "d")["messages"]]}
    made = tokenized([bad, chat("c", "d")], source)
    assert (made.n_records, len(made.block.tasks)) == (1, 1)
    assert re.search("the assistant's only token is the first", made.bad[0].reason)
