"""Conversations: their text, tokens and marks, and what is no conversation or template."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.examples.chats import CHATML, folder_of
from tests.examples.tokenized import sides_of
from tokenizers.processors import TemplateProcessing

from dynapipe_hpc.data.dataset.dataset_file import verify_dataset
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.chat_template import ChatTemplate, Rendered
from dynapipe_hpc.data.text.chat_turns import Turns, turn_samples
from dynapipe_hpc.data.text.conversation import Conversation
from dynapipe_hpc.data.text.open_lines import Lines
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import Recipe, recipe_of
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenize_lines import chat_sample, tokenize_lines
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer

Message = dict[str, Any]
ONE = PreprocessOptions(n_workers=1)

MISTRAL = """\
{{- bos_token }}
{%- set system = '' %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set system = message.content + '\\n\\n' %}
        {%- continue %}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are known, not ' + message.role) }}
    {%- endif %}
{%- endfor %}
"""


def recipe_in(folder: Path) -> Recipe:
    files = read_tokenizer(folder)
    return recipe_of(load_tokenizer(files), RecordFormat.MESSAGES)


def samples_of(
    template: ChatTemplate, conversation: Conversation, turns: Turns = Turns.EACH
) -> list[Rendered]:
    return turn_samples(conversation, template.apply(conversation), turns)


def test_a_chat_holds_no_end_token_that_a_decoder_puts_after_text(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    folder = folder_of(tmp_path / "model", source)
    model = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    model.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    model.save(str(folder / "tokenizer.json"))
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "world"}]
    block = tokenize_lines(line_of({"messages": chat}), recipe_in(folder)).block
    whole = model.encode("[user] Hello\n[assistant] world\n", add_special_tokens=False)
    [[inputs, targets]] = sides_of(block)
    assert inputs + targets == whole.ids


def test_a_table_adds_no_fields_to_the_objects_of_a_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: make reference")
    parquet = pytest.importorskip("pyarrow.parquet")
    records = []
    for name in "xy":
        call = {"function": {"name": "f", "arguments": {name: 1}}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        tool = {"name": "f", "parameters": {"properties": {name: {"type": "string"}}}}
        chat = [{"role": "user", "content": "q"}, answer]
        records.append({"messages": chat, "tools": [tool]})
    parquet.write_table(arrow.Table.from_pylist(records), tmp_path / "in.parquet")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "t.jinja").write_text(CHATML)
    recipe = recipe_of(Tokenizer(), RecordFormat.MESSAGES, template=tmp_path / "t.jinja")
    for name in ("in.parquet", "in.jsonl"):
        preprocess([tmp_path / name], tmp_path / f"{name}.h5", recipe, ONE)
    hashes = {verify_dataset(tmp_path / f"{name}.h5") for name in ("in.parquet", "in.jsonl")}
    assert len(hashes) == 1


def line_of(record: object) -> Lines:
    return Lines(Path("in.jsonl"), 7, [json.dumps(record).encode()])


def test_pairs_become_messages_by_a_template_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration %}"
        "{% endfor %}"
    )
    recipe = recipe_of(Tokenizer(), RecordFormat.PAIRS, template=tmp_path / "t.jinja")
    assert recipe.tokenizer.start_id is None
    block = tokenize_lines(line_of({"inputs": "é", "targets": "b"}), recipe).block
    assert sides_of(block) == [[[*"[user]é[assistant]".encode()], [*b"b"]]]
    assert block.spans.of_sample(0) == [(6, 8), (19, 20)]
    named = recipe_of(
        Tokenizer(), RecordFormat.PAIRS, template=tmp_path / "t.jinja", names_start=True
    )
    assert named.tokenizer.start_id == 256


BAD = [
    ({"messages": "a"}, r"field 'messages' is a string, not a list of messages"),
    ({"messages": []}, "field 'messages' is a list, not a list of messages"),
    ({"messages": ["a"]}, r"field 'messages\[0\]' is a string, not a message"),
    ({"messages": [{"content": "a"}]}, r"field 'messages\[0\]' has no 'role' \(found 'content'\)"),
    (
        {"messages": [{"role": "assistant", "content": {"type": "bytes"}}]},
        r"field 'messages\[0\].content' is an object, not a string",
    ),
    (
        {"messages": [{"role": "user", "content": "a"}]},
        "'messages' has no message of the assistant",
    ),
    ({"conversations": [{"from": "gpt", "value": 1}]}, "field 'value' is a number, not a string"),
    ({"inputs": "a"}, "field 'messages' is missing"),
    (
        {"messages": [{"role": "assistant", "content": "a</s>"}]},
        "special token </s>; --special-tok",
    ),
    (
        {"messages": [{"role": "assistant", "content": "a"}], "tools": [{"<|im_end|>": 1}]},
        r"special token <\|im_end\|>; --special-tok",
    ),
    (
        {"messages": [{"role": "assistant", "content": "a\udfff"}]},
        r"a text holds half of a surrogate pair, \\udfff",
    ),
    (
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]},
        r"the chat template of model refuses the messages: .*; messages\[1\] \(role 'assistant'\) "
        'has null content: write "" if it says nothing, or name another template: preprocess',
    ),
    (
        {"messages": [{"role": "tool", "content": None}, {"role": "assistant", "content": "a"}]},
        "the chat template of model refuses the messages: .*Only user and assistant roles are",
    ),
    (
        {"messages": [{"role": "tool", "content": ""}, {"role": "assistant", "content": "a"}]},
        "the chat template of model refuses the messages: .*Only user and assistant roles are",
    ),
]


@pytest.mark.parametrize(("record", "message"), BAD, ids=[m[:30] for _, m in BAD])
def test_a_bad_conversation_is_named_and_left_out(
    tmp_path: Path, record: object, message: str
) -> None:
    source = MISTRAL.replace("{{ message.content }}", "{{ message.content + '' }}")
    recipe = recipe_in(folder_of(tmp_path / "model", source))
    found = tokenize_lines(line_of(record), recipe)
    assert not found.block.tasks
    assert re.match(rf"in\.jsonl:7: .*{message}", found.bad[0].describe())


def test_a_message_may_be_nested_as_deeply_as_json(tmp_path: Path) -> None:
    recipe = recipe_in(folder_of(tmp_path / "model", MISTRAL))
    line = b'{"messages": [{"role": "assistant", "content": "a", "x": %s}]}' % (
        b"[" * 900 + b"]" * 900
    )
    found = tokenize_lines(Lines(Path("in.jsonl"), 7, [line]), recipe)
    assert not found.bad


def test_a_turn_without_tokens_is_left_out() -> None:
    tokenizer = Tokenizer()
    made = chat_sample(list(b"abcdef"), [(1, 3), (0, 0), (4, 6)], "", tokenizer)
    assert (made.inputs, made.targets, made.spans) == ([*b"abcd"], [*b"ef"], [(1, 3), (4, 6)])
    made = chat_sample(list(b"abcdef"), [(1, 3), (0, 0)], "", tokenizer)
    assert (made.inputs, made.targets, made.spans) == ([*b"a"], [*b"bcdef"], [(1, 3)])


def test_a_token_of_two_turns_is_of_both() -> None:
    made = chat_sample(list(b"abcdef"), [(1, 3), (2, 5)], "", Tokenizer())
    assert (made.inputs, made.targets, made.spans) == ([*b"a"], [*b"bcdef"], [(1, 5)])


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("{% macro write(m) %}", "{% endmacro %}{{ write(messages[0]) }}"),
        ("{% set text %}", "{% endset %}{{ text }}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% macro w() %}P{{ caller() }}{% endmacro %}{% call w() %}", "{% endcall %}"),
        ("{% for m in messages recursive %}", "{% endfor %}"),
        ("{% block b %}", "{% endblock %}{{ self.b() }}"),
    ],
)
def test_marks_that_transformers_would_misplace_are_refused(
    tmp_path: Path, begin: str, end: str
) -> None:
    source = "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    (tmp_path / "t.jinja").write_text(f"a\n{begin}{source}{end}")
    with pytest.raises(InputError, match=r"generation %} in a macro, call, block, .* \(line 2"):
        recipe_of(Tokenizer(), RecordFormat.MESSAGES, template=tmp_path / "t.jinja")


@pytest.mark.parametrize("content", ['{"chat_template": "{{ a }}"}', '"{{ a }}"', "A text.", ""])
def test_a_file_without_jinja_is_no_template(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    message = r"tokenizer\.json: is no chat template, which is Jinja, .* jq -r \.chat_template FILE"
    with pytest.raises(InputError, match=message):
        recipe_of(Tokenizer(), RecordFormat.PAIRS, template=path)


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    chat = Conversation([{"role": "assistant", "content": "a"}])
    for source in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(InputError, match=r"t refuses the messages: .SecurityError"):
            samples_of(ChatTemplate("t", {"default": source}), chat)


def test_an_encoder_decoder_reads_what_comes_before_the_last_turn() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    tokenizer = Tokenizer(start_id=0, input_end_id=1)
    recipe = Recipe(
        tokenizer, RecordFormat.MESSAGES, template=ChatTemplate("t", {"default": source})
    )
    chat = [{"role": r, "content": c} for r, c in (("user", "ab"), ("assistant", "cd"))]
    block = tokenize_lines(line_of({"messages": chat}), recipe).block
    assert sides_of(block) == [[[*b"ab", 1], [*b"cd"]]]
    assert block.spans.of_sample(0) == [(0, 2), (3, 5)]


def test_conversations_need_a_template_and_a_template_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"need a chat template: --tokenizer FOLDER .* --template"):
        recipe_of(Tokenizer(), RecordFormat.MESSAGES)
    (tmp_path / "t.jinja").write_text("{% for %}")
    with pytest.raises(InputError, match=r"t\.jinja: not a chat template: "):
        recipe_of(Tokenizer(), RecordFormat.MESSAGES, template=tmp_path / "t.jinja")
    with pytest.raises(InputError, match="plain text has no messages"):
        recipe_of(Tokenizer(), RecordFormat.TEXT, template=tmp_path / "t.jinja")
