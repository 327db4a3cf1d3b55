"""Random chat records, in every dialect, under templates of six kinds: ids as of `transformers`."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.examples.chats import WORDS, folder_of
from tests.examples.tokenized import sides_of

from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.open_lines import Lines
from dynapipe_hpc.data.text.recipe import Recipe, recipe_of
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenize_lines import tokenize_lines
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import load_tokenizer

Fields = dict[str, Any]

TOOLS = "{%- for t in tools or [] %}{{- 'tool ' + t | tojson + '\\n' }}{%- endfor %}"
BODY = """\
    {%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}
    {{- m.content }}{{- m.name }}{{- m.tool_call_id }}
    {%- for c in m.tool_calls or [] %}{{- '<call>' + c.function | tojson + '</call>' }}{%- endfor %}
"""
ALL = (
    TOOLS
    + "{{- mood }}{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}\n"
    + BODY
    + "{{- '<|im_end|>\\n' }}{%- endfor %}"
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LAST_USER = """\
{%- set ns = namespace(user=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.user = loop.index0 %}{%- endif %}
{%- endfor %}
"""
TEMPLATES = {
    "everything": ALL,
    "reasoning dropped": LAST_USER
    + ALL.replace("if m.reasoning_content", "if m.reasoning_content and loop.index0 > ns.user"),
    "dates": "{{- strftime_now('%d %B %Y') + bos_token }}" + ALL.replace(TOOLS, "{#- tools #}"),
    "marks": ALL.replace(
        "    {{- m.content }}",
        "    {%- if m.role == 'assistant' %}{%- generation %}{{- m.content }}{{- '<|im_end|>' }}"
        "{%- endgeneration %}{%- else %}{{- m.content }}{%- endif %}",
    ),
    "end after the last turn": ALL.replace(
        "{%- if add", "{%- if not add_generation_prompt %}{{- eos_token }}{%- endif %}{%- if add"
    ),
    "reasoning begun by the prompt": ALL.replace("assistant\\n' }}", "assistant\\n<think>' }}"),
}
"""The third has a template of its own for tools."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as transformers takes it, and a record that says the same."""

    messages: list[Fields]
    tools: list[Fields] | None
    values: Fields
    record: Fields
    trained: list[bool]


class Draw:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 (not for secrets)

    def chats(self, n: int) -> Iterator[Chat]:
        for _ in range(n):
            yield self._chat()

    def _is(self, share: float) -> bool:
        return self._random.random() < share

    def _text(self) -> str:
        return "".join(self._random.choices(WORDS, k=self._random.randint(1, 6)))

    def _call(self) -> Fields:
        arguments = {self._text(): self._text(), "n": self._random.randint(0, 9)}
        return {"type": "function", "function": {"name": "f", "arguments": arguments}}

    def _round(self) -> Iterator[Fields]:
        yield {"role": "user", "content": self._text()}
        while self._is(0.3):
            yield {
                "role": "assistant",
                "tool_calls": [self._call() for _ in range(self._random.randint(1, 2))],
            }
            yield {"role": "tool", "content": self._text()}
            if self._is(0.5):
                yield {"role": "tool", "content": self._text(), "name": "f", "tool_call_id": "c1"}
        answer = {"role": "assistant", "content": self._text()}
        if self._is(0.5):
            answer["reasoning_content"] = self._text()
        yield answer

    def _chat(self) -> Chat:
        messages: list[Fields] = [{"role": "system", "content": self._text()}] * self._is(0.5)
        for _ in range(self._random.randint(1, 3)):
            messages += self._round()
        tools = [{"type": "function", "function": {"name": self._text()}}] * self._is(0.4)
        values = {"mood": self._text()} if self._is(0.3) else {}
        trained = [message["role"] == "assistant" for message in messages]
        as_written = [self._written(message) for message in messages]
        for k in [k for k, is_turn in enumerate(trained) if is_turn][:-1]:
            if self._is(0.1):
                trained[k] = False
                as_written[k] |= self._random.choice([{"weight": 0}, {"train": False}])
        record = self._record(as_written, trained)
        if tools:
            record["tools"] = json.dumps(tools) if self._is(0.5) else tools
        if values:
            record["chat_template_kwargs"] = values
        return Chat(messages, tools or None, values, record, trained)

    def _record(self, messages: list[Fields], trained: list[bool]) -> Fields:
        record: Fields = {}
        if messages[0]["role"] == "system" and self._is(0.3):
            record["system"], messages = messages[0]["content"], messages[1:]
        match self._random.randint(0, 3):
            case 0:
                k = max(i for i, message in enumerate(messages) if message["role"] == "user") + 1
                trained[: len(trained) - len(messages) + k] = [False] * (
                    len(trained) - len(messages) + k
                )
                return {**record, "prompt": messages[:k], "completion": messages[k:]}
            case 1:
                return {**record, "conversations": [_as_sharegpt(m) for m in messages]}
            case _:
                return {**record, "messages": messages}

    def _written(self, message: Fields) -> Fields:
        """The same message in another dialect."""
        written = dict(message)
        if "reasoning_content" in message and self._is(0.5):
            name = self._random.choice(["reasoning", "thinking"])
            written[name] = written.pop("reasoning_content")
        if calls := message.get("tool_calls"):
            written["content"] = None
            if self._is(0.5):
                written["tool_calls"] = [_with_text_arguments(call) for call in calls]
        elif message["role"] != "system" and self._is(0.2):
            written["content"] = [{"type": "text", "text": message["content"]}]
        return written


def _with_text_arguments(call: Fields) -> Fields:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def _as_sharegpt(message: Fields) -> Fields:
    names = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}
    if isinstance(message.get("content"), list):
        message = {**message, "content": message["content"][0]["text"]}
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    if calls := rest.pop("tool_calls", None):
        functions = [call["function"] for call in calls]
        return {"from": "function_call", "value": json.dumps(functions), **rest}
    return {"from": names[message["role"]], "value": message["content"], **rest}


def samples(chat: Chat, recipe: Recipe) -> list[tuple[list[int], list[int]]]:
    """Ids of all samples of a record, and whether each is trained."""
    line = json.dumps(chat.record).encode()
    made = tokenize_lines(Lines(Path("in.jsonl"), 7, [line]), recipe)
    assert not made.bad, (made.bad, chat.record)
    made_of = []
    for i, (inputs, targets) in enumerate(sides_of(made.block)):
        ids = inputs + targets
        spans = made.block.spans.of_sample(i)
        mask = [int(any(start <= k < end for start, end in spans)) for k in range(len(ids))]
        made_of.append((ids, mask))
    return made_of


def folder(path: Path, name: str) -> Path:
    made = folder_of(path, TEMPLATES[name])
    if name == "dates":
        (made / "chat_template.jinja").write_text(TEMPLATES[name])
        (made / "additional_chat_templates").mkdir()
        (made / "additional_chat_templates" / "tool_use.jinja").write_text(ALL)
    return made


def assert_equals_transformers(path: Path, name: str, n_chats: int) -> None:
    model = folder(path / "model", name)
    theirs = transformers.AutoTokenizer.from_pretrained(model)
    files = read_tokenizer(model)
    recipes = {
        turns: recipe_of(load_tokenizer(files), RecordFormat.MESSAGES, turns=turns)
        for turns in Turns
    }

    def expected(chat: Chat, n_messages: int, **options: Any) -> Any:
        messages = chat.messages[:n_messages]
        return theirs.apply_chat_template(messages, tools=chat.tools, **chat.values, **options)

    for chat in Draw(len(name)).chats(n_chats):
        whole = expected(chat, len(chat.messages), return_dict=True)["input_ids"]
        for turns in (Turns.LAST, Turns.WHOLE):
            [(ids, _)] = samples(chat, recipes[turns])
            assert ids == whole
        turns_of_chat = [k for k, m in enumerate(chat.messages) if m["role"] == "assistant"]
        texts = {k: expected(chat, k + 1, tokenize=False) for k in turns_of_chat}
        groups: list[list[int]] = [[]]
        for k in turns_of_chat:
            if groups[-1] and not texts[k].startswith(texts[groups[-1][-1]]):
                groups.append([])
            groups[-1].append(k)
        made = samples(chat, recipes[Turns.EACH])
        views = [group[-1] for group in groups if any(chat.trained[k] for k in group)]
        assert [ids for ids, _ in made] == [
            expected(chat, k + 1, return_dict=True)["input_ids"] for k in views
        ]
        if name == "marks" and sum(chat.trained) == len(turns_of_chat):
            marked = expected(
                chat, len(chat.messages), return_dict=True, return_assistant_tokens_mask=True
            )
            for recipe in (recipes[Turns.EACH], recipes[Turns.WHOLE]):
                assert [mask for _, mask in samples(chat, recipe)] == [marked["assistant_masks"]]


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_and_masks_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    assert_equals_transformers(tmp_path, name, 40)
