"""Fields of messages and of records: used as whoever wrote them meant, or refused by name."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.examples.chats import CHATML, Record, chat, refusal, shown, tokenized

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import format_of_sources, recipe_of
from dynapipe_hpc.data.text.record_fields import REFUSED, RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, PairFields, check_first_line, sample_of
from dynapipe_hpc.data.text.tokenizers import Tokenizer

HEAD = "<user>a</><assistant>"
CALL = {"name": "f", "arguments": {"x": 1}}
CALL_TEXT = '<call>{"name": "f", "arguments": {"x": 1}}'
TOOL = {"type": "function", "function": {"name": "f"}}
TOOLS_TEXT = '<tools>[{"type": "function", "function": {"name": "f"}}]</>'


def answered(**message: Any) -> Record:
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", **message}]}


def with_parts(*parts: Any) -> Record:
    return answered(content=list(parts))


TEXTS = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
LOOKS_INTO_PARTS = CHATML.replace(
    "{{- m.content }}",
    "{%- if m.content is string %}{{- m.content }}{%- else %}"
    "{%- for p in m.content %}{{- '(' + p.text | default(p.type) + ')' }}{%- endfor %}{%- endif %}",
)


@pytest.mark.parametrize(
    "written", ["m.content", "m.content ~ ''", "'' + m.content", "m.content | trim"]
)
def test_parts_of_text_are_joined_where_a_template_takes_text(written: str) -> None:
    source = CHATML.replace("{{- m.content }}", f"{{{{- {written} }}}}")
    assert shown(with_parts(*TEXTS), source) == [f"{HEAD}[bc</>]"]


def test_a_template_that_looks_into_parts_gets_them() -> None:
    assert shown(with_parts(*TEXTS), LOOKS_INTO_PARTS) == [f"{HEAD}[(b)(c)</>]"]
    other = {"type": "thinking", "thinking": "1"}
    assert shown(with_parts(other), LOOKS_INTO_PARTS) == [f"{HEAD}[(thinking)</>]"]


BAD_PARTS = [
    ({"type": "image_url"}, r"'messages\[1\].content\[0\]' is of type 'image_url'; only text is"),
    ({"type": "input_audio"}, "is of type 'input_audio'; only text is trained"),
    ({"type": "thinking"}, r"messages\[1\] has content of type 'thinking', but only text"),
    ({"text": "b"}, r"'messages\[1\].content\[0\]' is an object, not a part with a 'type'"),
    ("b", "is a string, not a part with a 'type'"),
    ({"type": "text"}, r"field 'messages\[1\].content\[0\].text' is null, not a string"),
]


@pytest.mark.parametrize(("part", "message"), BAD_PARTS, ids=[m[-20:] for _, m in BAD_PARTS])
def test_other_parts_are_refused_by_their_type(part: object, message: str) -> None:
    assert re.search(f"in.jsonl:7: .*{message}", refusal(with_parts(part)))


def test_a_template_that_asks_for_null_content_gets_it() -> None:
    source = CHATML.replace(
        "{{- m.content }}", "{%- if m.content is not none %}{{- m.content + '' }}{%- endif %}"
    )
    record = answered(content=None, tool_calls=[{"function": CALL}])
    assert shown(record, source) == [f"{HEAD}[{CALL_TEXT}</>]"]


@pytest.mark.parametrize("written", ["'' + {}", "{} ~ ''", "{}"])
def test_a_template_that_joins_arguments_as_text_gets_their_text(written: str) -> None:
    source = CHATML.replace("c.function | tojson", written.format("c.function.arguments"))
    for arguments, text in (('{"x":1}', '{"x":1}'), ({"x": "é"}, '{"x": "é"}')):
        record = answered(content="", tool_calls=[{"function": {**CALL, "arguments": arguments}}])
        assert shown(record, source)[0].encode().decode() == f"{HEAD}[<call>{text}</>]"


def test_functions_of_older_files_are_tools_and_their_calls_calls_of_tools() -> None:
    functions = [TOOL["function"]]
    assert shown(chat("a", "b", functions=functions)) == [f"{TOOLS_TEXT}{HEAD}[b</>]"]
    call = {**CALL, "arguments": '{"x": 1}'}
    messages = [
        *answered(content=None, function_call=call)["messages"],
        {"role": "function", "name": "f", "content": "r"},
    ]
    assert shown({"messages": messages}) == [f"{HEAD}[{CALL_TEXT}</>]<tool>r</>"]


def sharegpt(*turns: tuple[str, str]) -> Record:
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def test_calls_and_results_of_sharegpt_are_those_of_tools() -> None:
    call = json.dumps(CALL)
    record = sharegpt(("human", "a"), ("function_call", call), ("observation", "r"), ("gpt", "b"))
    assert shown(record) == [f"{HEAD}[{CALL_TEXT}</>]<tool>r</><assistant>[b</>]"]
    together = sharegpt(("human", "a"), ("function_call", f"[{call}, {call}]"))
    one_by_one = sharegpt(("human", "a"), ("function_call", call), ("function_call", call))
    one_by_one["conversations"].append({"from": "gpt", "value": "b"})
    together["conversations"].append({"from": "gpt", "value": "b"})
    expected = [f"{HEAD}[{CALL_TEXT}{CALL_TEXT}</>]<assistant>[b</>]"]
    assert shown(together) == shown(one_by_one) == expected
    one_by_one["conversations"][2]["weight"] = 0
    assert shown(one_by_one) == [f"{HEAD}{CALL_TEXT}{CALL_TEXT}</><assistant>[b</>]"]


def test_roles_of_ms_swift_are_those_of_tools() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "tool_call", "content": json.dumps(CALL)},
        {"role": "tool_response", "content": "r"},
    ]
    assert shown({"messages": messages}) == [f"{HEAD}[{CALL_TEXT}</>]<tool>r</>"]


def test_roles_that_nobody_knows_are_named() -> None:
    words = r"'conversations\[0\]' is from 'Human', which is not one of the known roles: assist"
    assert re.search(words, refusal(sharegpt(("Human", "a"), ("gpt", "b"))))
    words = r"no message of the assistant: nothing to learn \(found the roles 'user'\)"
    assert re.search(words, refusal(chat("a")))
    record = {"messages": [{"role": "narrator", "content": "a"}, *chat("a", "b")["messages"]]}
    assert shown(record) == [f"<narrator>a</>{HEAD}[b</>]"]


def test_a_developer_is_the_system_where_the_template_knows_no_developer() -> None:
    record = {"messages": [{"role": "developer", "content": "s"}, *chat("a", "b")["messages"]]}
    assert shown(record) == [f"<system>s</>{HEAD}[b</>]"]
    source = "{# developer #}" + CHATML
    assert shown(record, source) == [f"<developer>s</>{HEAD}[b</>]"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("shown_as", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_three_names(name: str, shown_as: str) -> None:
    source = CHATML.replace("reasoning_content", shown_as)
    record = answered(content="b", **{name: "1"})
    assert shown(record, source) == [f"{HEAD}[<think>1</think>b</>]"]


@pytest.mark.parametrize(
    "flag", [{"weight": 0}, {"weight": 0.0}, {"train": False}, {"loss": False}]
)
def test_a_turn_may_say_that_it_is_not_trained(flag: Record) -> None:
    record = chat("a", "bad", "c", "good")
    record["messages"][1] |= flag
    record["messages"][3] |= dict.fromkeys(flag, 1)
    expected = "<user>a</><assistant>bad</><user>c</><assistant>[good</>]"
    assert shown(record) == [expected]
    marked = CHATML.replace(
        "{{- m.content }}", "{%- generation %}{{- m.content }}{%- endgeneration %}"
    )
    marked = marked.replace(
        "{%- generation", "{%- if m.role == 'user' %}{{- m.content }}{%- else %}{%- generation"
    )
    marked = marked.replace("endgeneration %}", "endgeneration %}{%- endif %}")
    assert shown(record, marked) == [expected.replace("</>]", "]</>")]
    assert shown({**record, "system": "s"}) == [f"{SYSTEM}{expected}"]
    record["messages"][3] |= flag
    assert "field 'messages' says that no turn is trained: nothing to learn" in refusal(record)


FIELDS: list[tuple[Record, str]] = [
    ({"weight": 0.5}, r"'messages\[1\].weight' is '0.5'; a turn is trained \(1 or true\) or not"),
    ({"train": "no"}, r"'messages\[1\].train' is 'no'; a turn is trained"),
    ({"reasoning": 1}, r"'messages\[1\].reasoning' is a number, not a string"),
    (
        {"reasoning": "1", "thinking": "2"},
        "several reasoning fields: 'thinking', 'reasoning'; keep one",
    ),
    ({"tool_calls": {"name": "f"}}, r"'messages\[1\].tool_calls' is an object, not a list"),
    ({"tool_calls": ["f"]}, r"'messages\[1\].tool_calls\[0\]' is a string, not an object"),
    ({"tool_calls": "f"}, r"'messages\[1\].tool_calls' is a string that does not hold JSON"),
    ({"function_call": "f"}, r"\[1\].function_call' is no object, or there are other calls"),
    ({"role": "tool_call"}, r"'messages\[1\]' is not a tool call: JSON with 'name' and"),
]


@pytest.mark.parametrize(("fields", "message"), FIELDS, ids=[m[:30] for _, m in FIELDS])
def test_a_wrong_field_of_a_message_is_named(fields: Record, message: str) -> None:
    assert re.search(message, refusal(answered(**{"content": "b", **fields})))


def test_only_turns_of_the_assistant_can_be_trained() -> None:
    record = chat("a", "b")
    record["messages"][0]["train"] = True
    words = r"'messages\[0\].train': only turns of the assistant are trained"
    assert re.search(words, refusal(record))


BESIDE: list[tuple[Record, str]] = [
    ({"tools": "x"}, "field 'tools' is a string that does not hold JSON"),
    ({"tools": '{"a": 1}'}, "field 'tools' is an object, not a list"),
    ({"tools": [TOOL], "functions": [TOOL]}, "'tools' and 'functions' are both given; keep tools"),
    ({"chat_template_kwargs": [1]}, "field 'chat_template_kwargs' is a list, not an object"),
    ({"chat_template_kwargs": {"messages": 1}}, "'chat_template_kwargs' holds 'messages', which"),
    ({"history": ["q"]}, r"'history\[0\]' is not a list of a question and an answer"),
    ({"system": 1}, "field 'system' is a number, not a string"),
    ({"parallel_tool_calls": False}, "t does not show the field 'parallel_tool_calls'; name a"),
]


@pytest.mark.parametrize(("fields", "message"), BESIDE, ids=[m[:30] for _, m in BESIDE])
def test_a_wrong_field_beside_the_messages_is_named(fields: Record, message: str) -> None:
    assert re.search(message, refusal(chat("a", "b", **fields)))


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (chat("a", "b", tools=[TOOL]), "tools"),
        (answered(tool_calls=[{"function": CALL}]), "tool_calls"),
        (answered(content="b", thinking="1"), "reasoning_content"),
    ],
)
def test_a_template_that_does_not_show_a_field_is_refused(record: Record, name: str) -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert f"t does not show the field '{name}'; name a template that does" in refusal(
        record, source
    )


SYSTEM = "<system>s</>"
EARLIER = "<user>q</><assistant>[r</>]"


def test_system_and_history_beside_a_conversation_come_before_it() -> None:
    fields: Record = {"system": "s", "history": [["q", "r"]]}
    assert shown(chat("a", "b", **fields)) == [f"{SYSTEM}{EARLIER}{HEAD}[b</>]"]
    own = {"messages": [{"role": "system", "content": "s"}, *chat("a", "b")["messages"]]}
    assert shown({**own, **fields}) == [f"{SYSTEM}{EARLIER}{HEAD}[b</>]"]
    assert "'system' and a system message differ" in refusal({**own, "system": "t"})


def test_system_and_history_of_a_pair_need_a_template() -> None:
    fields: Record = {"system": "s", "history": [["q", "r"]]}
    alpaca = {"instruction": "a", "output": "b", **fields}
    assert shown(alpaca, record_format=RecordFormat.ALPACA) == [f"{SYSTEM}{EARLIER}{HEAD}[b</>]"]
    pair = {"inputs": "a", "targets": "b", **fields}
    assert shown(pair, record_format=RecordFormat.PAIRS) == [f"{SYSTEM}{EARLIER}{HEAD}[b</>]"]


def test_without_a_template_they_are_refused(tmp_path: Path) -> None:
    recipe = recipe_of(Tokenizer(), RecordFormat.ALPACA)
    (tmp_path / "in.jsonl").write_text('{"instruction": "a", "output": "b", "system": "s"}\n')
    with pytest.raises(InputError, match=r"in\.jsonl:1: field 'system' needs a chat template"):
        preprocess([tmp_path / "in.jsonl"], tmp_path / "x.h5", recipe, PreprocessOptions())


def test_messages_of_a_prompt_are_read_and_those_of_a_completion_trained(tmp_path: Path) -> None:
    messages = chat("q", "r", "a", "b")["messages"]
    record = {"prompt": messages[:3], "completion": messages[3:]}
    assert shown(record) == [f"<user>q</><assistant>r</>{HEAD}[b</>]"]
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    for fields in (PAIR_FIELDS, PairFields("prompt", "completion")):
        assert format_of_sources([tmp_path / "in.jsonl"], fields) is RecordFormat.MESSAGES
    with pytest.raises(InputError, match="'x' and 'targets' are not two lists of messages; leave"):
        sample_of(chat("a", "b"), RecordFormat.MESSAGES, PairFields("x"))


def test_a_template_named_for_tools_is_for_records_with_tools() -> None:
    no_tools = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    no_tools += "{% if add_generation_prompt %}<assistant>{% endif %}"
    both = ChatTemplate("t", {"default": no_tools, "tool_use": CHATML})
    assert shown(chat("a", "b"), both) == [f"{HEAD}[b</>]"]
    assert shown(chat("a", "b", tools=[TOOL]), both) == [f"{TOOLS_TEXT}{HEAD}[b</>]"]
    no_default = ChatTemplate("t", {"rag": no_tools, "tool_use": CHATML})
    assert shown(chat("a", "b", tools=[TOOL]), no_default) == [f"{TOOLS_TEXT}{HEAD}[b</>]"]
    words = "t has templates of the names rag, tool_use, but none is named default; name a file"
    assert re.search(words, refusal(chat("a", "b"), no_default))


README = Path(__file__).parents[3] / "data" / "README.md"
ROW = re.compile(r"^\| (record|message) \| (.+?) \| .+? \| (refused: )?(.+?) \|$", re.MULTILINE)


class KnownField(NamedTuple):
    place: str
    name: str
    is_refused: bool
    use: str


KNOWN_FIELDS = [
    KnownField(place, name.strip("`"), bool(refused), use)
    for place, names, refused, use in ROW.findall(README.read_text())
    for name in names.split(", ")
]
ANY_CALL = {"name": "f", "arguments": {}}
VALUES: dict[str, Any] = {
    "history": [["q", "r"]],
    "tools": [{"name": "f"}],
    "functions": [{"name": "f"}],
    "chat_template_kwargs": {"mood": "glad"},
    "label": False,
    "parallel_tool_calls": False,
    "tool_calls": [{"function": ANY_CALL}],
    "function_call": ANY_CALL,
    "weight": 0,
    "train": False,
    "loss": False,
}
"""Values of the fields that are no text."""
SOURCE = CHATML.replace(
    "{{- m.content }}", "{{- m.content }}{{- m.name }}{{- m.tool_call_id }}"
) + ("{{- mood }}{{- parallel_tool_calls }}")
"""A template that shows all of them."""
SHAPES: list[tuple[set[str], Record, RecordFormat]] = [
    ({"messages", "role", "content"}, chat("a", "b"), RecordFormat.MESSAGES),
    (
        {"conversations", "from", "value"},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        RecordFormat.MESSAGES,
    ),
    (
        {"prompt", "completion"},
        {"prompt": chat("a")["messages"], "completion": chat("a", "b")["messages"][1:]},
        RecordFormat.MESSAGES,
    ),
    (
        {"instruction", "input", "output"},
        {"instruction": "a", "input": "", "output": "b"},
        RecordFormat.ALPACA,
    ),
    (
        {"context", "response"},
        {"instruction": "a", "context": "", "response": "b"},
        RecordFormat.ALPACA,
    ),
]
"""Records that say the same, by the fields that say it."""


def with_field(field: KnownField) -> Record:
    record = chat("a", "b", "c", "d")
    place = record if field.place == "record" else record["messages"][1]
    place[field.name] = VALUES.get(field.name, "v")
    return record


@pytest.mark.parametrize("field", KNOWN_FIELDS, ids=lambda field: f"{field.place}-{field.name}")
def test_a_known_field_never_vanishes(field: KnownField) -> None:
    for names, record, record_format in SHAPES:
        if field.name in names:
            assert shown(record, SOURCE, record_format=record_format) == shown(
                chat("a", "b"), SOURCE
            )
            assert field.name in record or any(
                field.name in message for message in next(iter(record.values()))
            )
            return
    record = with_field(field)
    if field.is_refused:
        assert re.search(rf"field '[\w\[\].]*{field.name}' is not used", refusal(record, SOURCE))
    else:
        assert shown(record, SOURCE) != shown(chat("a", "b", "c", "d"), SOURCE)


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_a_known_field_that_is_empty_is_as_if_it_were_not_there(value: object) -> None:
    for field in KNOWN_FIELDS:
        record = with_field(field)
        place = record if field.place == "record" else record["messages"][1]
        if field.is_refused:
            place[field.name] = value
            assert shown(record, SOURCE) == shown(chat("a", "b", "c", "d"), SOURCE)


def test_a_field_that_nobody_knows_is_ignored() -> None:
    assert shown(chat("a", "b", source="x", label=3), SOURCE) == shown(chat("a", "b"), SOURCE)


def test_pairs_are_refused_by_the_same_names_and_text_by_none() -> None:
    pair = {"inputs": "a", "targets": "b"}
    words = "field 'chosen' is not used (answers of preference pairs; --format preferences or"
    assert words in refusal({**pair, "chosen": "b"}, record_format=RecordFormat.PAIRS)
    page = {"text": "a", "images": ["x"], "history": "created 2001", "tools": "hammer", "system": 5}
    made = tokenized([page], record_format=RecordFormat.TEXT)
    assert made.n_records == 1


def test_the_documentation_has_every_field_that_is_refused_and_why() -> None:
    refused = {(place, name, why) for place, of in REFUSED.items() for name, why in of.items()}
    assert {(k.place, k.name, k.use) for k in KNOWN_FIELDS if k.is_refused} == refused
    assert len(KNOWN_FIELDS) == len({(known.place, known.name) for known in KNOWN_FIELDS}) == 55


TABLES = {
    "a.csv": 'inputs,targets\n"a, ""b""\nc",d\n',
    "a.tsv": 'inputs\ttargets\n"a, ""b""\nc"\td\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_the_program_that_a_message_names_converts_a_table(name: str, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text(TABLES[name])
    with pytest.raises(InputError, match="is a table") as refused:
        check_first_line(Path(name), b"inputs,targets", RecordFormat.PAIRS, PAIR_FIELDS)
    program = re.search("python3 .*FILE.jsonl", str(refused.value))
    assert program is not None
    subprocess.run(program[0], shell=True, cwd=tmp_path, check=True)  # noqa: S602 - our own text
    record = json.loads((tmp_path / "FILE.jsonl").read_text())
    assert record == {"inputs": 'a, "b"\nc', "targets": "d"}
