"""Turns that a template writes otherwise when others follow: samples as the model will see them."""

import json
import re
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

import pytest
import tokenizers
from tests.examples.chats import CHATML, SPECIAL, Record, chat, folder_of, refusal, shown, tokenized
from tests.examples.tokenized import SAMPLES, header, write_samples
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, JoinedDatasets
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import recipe_of
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.show_dataset import describe_dataset, show_samples
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer
from dynapipe_hpc.data.token_block import TokenBlock, TokenizedSample

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


def test_without_a_generation_prompt_the_head_of_a_turn_is_trained() -> None:
    source = CHATML.partition("{%- if add_generation_prompt")[0]
    assert shown(chat("a", "b", "c"), source) == ["<user>a</>[<assistant>b</>]<user>c</>"]


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
    alone = {"messages": record["messages"][:1]}
    assert re.search("t refuses the messages: .*no user", refusal(alone, NEEDS_A_USER))


def test_a_generation_prompt_that_begins_reasoning_is_no_part_of_a_turn_without() -> None:
    source = CHATML.replace("{{- '<assistant>' }}", "{{- '<assistant><think>' }}")
    for answer in ("b", "<b"):
        assert shown(chat("a", answer), source) == [f"<user>a</><assistant>[{answer}</>]"]
    record = chat("a", "<think>1</think>b")
    assert shown(record, source) == ["<user>a</><assistant><think>[1</think>b</>]"]


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


HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
ENDED_CHATML = HEAD + "{{ m.content }}<|im_end|>\n" + TAIL
TWO_ENDS = (
    HEAD
    + "{{ m.content }}{% if m.tool_calls %}call<|eot_id|>{% else %}<|im_end|>{% endif %}\n"
    + TAIL
)
IN_BLOCKS = (
    HEAD
    + "{% if m.role == 'assistant' %}"
    + "{% generation %}think<|end_header_id|>{% endgeneration %}-"
    + "{% generation %}{{ m.content }}<|im_end|>\n{% endgeneration %}"
    + "{% else %}{{ m.content }}<|im_end|>\n{% endif %}"
    + TAIL
)
UNTRAINED_END = HEAD + "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>\n" + TAIL


def end_tokens(
    folder: Path, template: str, records: Sequence[Record], turns: Turns = Turns.EACH
) -> list[str]:
    """Names of the tokens that a dataset records."""
    files = read_tokenizer(folder_of(folder / "tokenizer", template))
    recipe = recipe_of(load_tokenizer(files), RecordFormat.MESSAGES, turns=turns)
    (folder / "in.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    out = folder / "out.h5"
    preprocess([folder / "in.jsonl"], out, recipe, PreprocessOptions(n_workers=1))
    with DatasetFile(out) as dataset:
        return [SPECIAL[token_id] for token_id in dataset.header.turn_end_ids]


@pytest.mark.parametrize("turns", Turns)
def test_the_token_that_ends_trained_turns_is_recorded(tmp_path: Path, turns: Turns) -> None:
    records = [chat("hi", "yes", "and", "no"), chat("hi", "yes", "thanks")]
    assert end_tokens(tmp_path, ENDED_CHATML, records, turns) == ["<|im_end|>"]


@pytest.mark.parametrize(("weight", "second"), [(1, ["<|eot_id|>"]), (0, [])])
def test_turns_that_call_tools_may_end_otherwise_if_they_are_trained(
    tmp_path: Path, weight: int, second: list[str]
) -> None:
    record = chat("hi", "", "sun", "yes")
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    record["messages"][1] |= {"tool_calls": [call], "weight": weight}
    assert end_tokens(tmp_path, TWO_ENDS, [record]) == ["<|im_end|>", *second]


def test_a_token_within_a_turn_does_not_end_it(tmp_path: Path) -> None:
    for turns in Turns:
        (tmp_path / turns).mkdir()
        found = end_tokens(tmp_path / turns, IN_BLOCKS, [chat("hi", "yes", "and", "no")], turns)
        assert found == ["<|im_end|>"]


def test_an_end_that_is_not_trained_is_not_recorded(tmp_path: Path) -> None:
    assert end_tokens(tmp_path, UNTRAINED_END, [chat("hi", "yes")]) == []


def with_ends(path: Path, *ids: int) -> Path:
    with DatasetWriter.create(path, header()) as writer:
        for token_id in ids:
            samples = list(starmap(TokenizedSample, SAMPLES))
            writer.append(TokenBlock.from_samples(samples, 10, turn_end_ids={token_id}))
    return path


def test_blocks_and_mixtures_have_the_ends_of_all(tmp_path: Path) -> None:
    with_ends(tmp_path / "x.h5", 7, 3, 5)
    pairs = write_samples(tmp_path / "pairs.h5")
    whole, other = DatasetFile(tmp_path / "x.h5"), DatasetFile(pairs)
    assert whole.header.turn_end_ids == (3, 5, 7)
    assert (whole.header.end_ids, other.header.end_ids) == ((3, 5, 7), (9,))
    joined = JoinedDatasets({"a": whole, "b": other})
    assert joined.header.end_ids == (3, 5, 7, 9)
    joined.close()


def test_the_summary_of_a_dataset_shows_what_ends_its_turns(tmp_path: Path) -> None:
    assert "end of sequence 9, of turns 3, 5, start 9" in describe_dataset(
        with_ends(tmp_path / "x.h5", 5, 3)
    )
    assert "of turns" not in describe_dataset(write_samples(tmp_path / "pairs.h5"))


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
    files = read_tokenizer(tmp_path / "one")
    messages = RecordFormat.MESSAGES
    recipe = recipe_of(load_tokenizer(files), messages, template=tmp_path / "t.jinja")
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
    recipe = recipe_of(Tokenizer(), RecordFormat.PAIRS)
    output = tmp_path / "x.h5"
    preprocess([tmp_path / "in.jsonl"], output, recipe, PreprocessOptions(n_workers=1))
    assert show_samples(output, 1, None).splitlines()[1:] == [
        "  read     é\\n",
        "  trained  b<end>",
    ]
