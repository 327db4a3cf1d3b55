"""Conversations: what a record of messages holds, whatever format it is written in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dynapipe_hpc.data.errors import InputError, listed
from dynapipe_hpc.data.text.messages import ASSISTANT, Fields, Message, message_from
from dynapipe_hpc.data.text.record_fields import (
    is_empty,
    json_of,
    kind_of,
    text_of,
)

CONVERSATIONS, SYSTEM = "conversations", "system"
CONTEXT = (
    *("system", "history", "tools", "functions"),
    *("chat_template_kwargs", "parallel_tool_calls"),
)
"""Fields that a record may have beside its messages, or beside its pair."""
RESERVED = ("messages", "tools", "add_generation_prompt")
"""Names of template values that `chat_template_kwargs` must not set."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and other arguments of a chat template."""

    messages: list[Fields]
    tools: list[Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    untrained: frozenset[int] = frozenset()

    @property
    def turns(self) -> list[int]:
        """Indices of the messages of the assistant."""
        return [k for k, message in enumerate(self.messages) if message["role"] == ASSISTANT]


@dataclass(frozen=True, slots=True)
class Texts:
    """A prompt, which may be empty, and its answer, or both answers of a preference pair."""

    prompt: str
    answers: tuple[str, ...]
    context: Conversation

    def as_conversations(self) -> tuple[Conversation, ...]:
        """A conversation per answer: a message of the user, if any, and one of the assistant."""
        before = self.context.messages
        both = (question_and_answer(self.prompt, answer) for answer in self.answers)
        return tuple(replace(self.context, messages=[*before, *messages]) for messages in both)


Content = Texts | tuple[Conversation, ...]
"""Texts or conversations of a record; a preference pair has two answers, or two conversations."""


def n_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """Number of equal messages, characters or tokens at the start of both sequences."""
    if other[: len(one)] == one:
        return len(one)
    both = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def conversation_from(record: Mapping[str, Any], prompt: str, completion: str) -> Conversation:
    """The conversation in a record.

    `prompt`: Name of the field whose messages are not trained, in records without `messages`.
    """
    name = CONVERSATIONS if CONVERSATIONS in record else "messages"
    if name in record:
        messages = _messages(record, name)
    elif isinstance(record.get(prompt), list):
        read_only = [message._replace(is_trained=False) for message in _messages(record, prompt)]
        messages, name = [*read_only, *_messages(record, completion)], completion
    else:
        raise InputError(f"field 'messages' is missing (found {listed(record)})")
    _check_turns(messages, name)
    context = context_of(record)
    if messages[0].fields["role"] == SYSTEM and context.messages[:1]:
        context = _without_system(context, messages.pop(0).fields)
    return _joined(context, messages)


def context_of(record: Mapping[str, Any]) -> Conversation:
    """The context of a record's messages or pair: messages before them, tools, template values."""
    messages: list[Fields] = []
    if record.keys().isdisjoint(CONTEXT):  # nearly always, and looking at each takes time
        return Conversation(messages)
    if system := text_of(record, SYSTEM, ""):
        messages.append({"role": SYSTEM, "content": system})
    for k, turn in enumerate(json_of(record.get("history"), "history", list) or []):
        if not (
            isinstance(turn, list) and len(turn) == 2 and all(isinstance(t, str) for t in turn)
        ):
            raise InputError(f"field 'history[{k}]' is not a list of a question and an answer")
        messages += question_and_answer(*turn)
    return Conversation(messages, _tools_of(record), _values_of(record))


def check_no_context(record: Mapping[str, Any]) -> None:
    """Refuses fields that only a chat template can show."""
    for name in () if record.keys().isdisjoint(CONTEXT) else CONTEXT:
        if not is_empty(record.get(name)):
            raise InputError(
                f"field '{name}' needs a chat template, but there is none; name one: "
                "preprocess --template FILE"
            )


def question_and_answer(question: str, answer: str) -> list[Fields]:
    """A message of the user, unless the question is empty, and one of the assistant."""
    asking = [{"role": "user", "content": question}] if question else []
    return [*asking, {"role": ASSISTANT, "content": answer}]


def _messages(record: Mapping[str, Any], name: str) -> list[Message]:
    values = record.get(name)
    if not isinstance(values, list) or not values:
        raise InputError(f"field '{name}' is {kind_of(values)}, not a list of messages")
    messages: list[Message] = []
    for k, value in enumerate(values):
        message = message_from(value, f"{name}[{k}]")
        if messages and messages[-1].is_call and message.is_call:  # several calls at a time
            messages[-1].fields["tool_calls"] += message.fields["tool_calls"]
            is_trained = messages[-1].is_trained and message.is_trained
            messages[-1] = messages[-1]._replace(is_trained=is_trained)
        else:
            messages.append(message)
    return messages


def _check_turns(messages: list[Message], name: str) -> None:
    turns = [message for message in messages if message.fields["role"] == ASSISTANT]
    if not turns:
        roles = dict.fromkeys(message.fields["role"] for message in messages)
        raise InputError(
            f"field '{name}' has no message of the assistant: nothing to learn (found the roles "
            f"{listed(roles)})"
        )
    if not any(message.is_trained for message in turns):
        raise InputError(f"field '{name}' says that no turn is trained: nothing to learn")


def _without_system(context: Conversation, system: Fields) -> Conversation:
    before = context.messages
    if before[0]["role"] == SYSTEM:
        if before[0]["content"] != system.get("content"):
            raise InputError("field 'system' and a system message differ; keep one of them")
        before = before[1:]
    return replace(context, messages=[system, *before])


def _joined(context: Conversation, messages: list[Message]) -> Conversation:
    n_before = len(context.messages)
    untrained = (
        n_before + k
        for k, message in enumerate(messages)
        if message.fields["role"] == ASSISTANT and not message.is_trained
    )
    return replace(
        context,
        messages=[*context.messages, *(message.fields for message in messages)],
        untrained=frozenset(untrained),
    )


def _tools_of(record: Mapping[str, Any]) -> list[Any] | None:
    tools: list[Any] | None = json_of(record.get("tools"), "tools", list)
    if functions := json_of(record.get("functions"), "functions", list):
        if tools:
            raise InputError("fields 'tools' and 'functions' are both given; keep tools")
        tools = [{"type": "function", "function": function} for function in functions]
    return tools or None


def _values_of(record: Mapping[str, Any]) -> Fields:
    name = "chat_template_kwargs"
    values: Fields = json_of(record.get(name), name, dict) or {}
    for reserved in RESERVED:
        if reserved in values:
            raise InputError(f"field '{name}' holds '{reserved}', which preprocess sets; remove it")
    parallel = record.get("parallel_tool_calls")
    return values if parallel is None else {**values, "parallel_tool_calls": parallel}
