"""Messages of conversations, as templates know them, whatever format they are written in."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from dynapipe_hpc.data.errors import InputError, listed, quoted
from dynapipe_hpc.data.input_file import json_value
from dynapipe_hpc.data.text.record_fields import (
    check_fields,
    is_empty,
    json_of,
    kind_of,
    text_of,
)

Fields = dict[str, Any]
ASSISTANT = "assistant"
CALLS = ("function_call", "tool_call")
"""Roles whose content is a tool call as JSON."""
ROLES = {
    "human": "user",
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", *CALLS), ASSISTANT),
    **dict.fromkeys(("observation", "function", "function_response", "tool_response"), "tool"),
}
"""Roles by their other names in ShareGPT, LLaMA-Factory, ms-swift and older files."""
KNOWN_ROLES = {*ROLES, *ROLES.values(), "system", "developer"}
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the field with the reasoning; a template reads one of them."""
FLAGS = ("weight", "train", "loss")
"""Fields that say whether a turn is trained."""
_MEDIA = ("image", "video", "audio", "file")


class PrintedError(Exception):
    """A template prints a value as Python does."""


class Parts(list[Any]):
    """Content in parts, which a template must look into."""

    def __repr__(self) -> str:
        """Refuses to be printed."""
        raise PrintedError("content in parts is not text")

    @property
    def other_types(self) -> list[str]:
        """Types of the parts that are not text."""
        return [part["type"] for part in self if part["type"] != "text"]


class Arguments(dict[str, Any]):
    """Arguments of a call, which a template must write as JSON."""

    def __init__(self, arguments: Mapping[str, Any], as_json_text: str) -> None:
        super().__init__(arguments)
        self.as_json_text = as_json_text

    def __repr__(self) -> str:
        """Refuses to be printed."""
        raise PrintedError("arguments are not text")


class Message(NamedTuple):
    """A message as a template takes it."""

    fields: Fields
    is_trained: bool
    is_call: bool  # whether its role is one of `CALLS`; several such messages in a row are joined


def message_from(value: object, name: str) -> Message:
    if not isinstance(value, dict):
        raise InputError(f"field '{name}' is {kind_of(value)}, not a message")
    check_fields(value, "message", f"{name}.")
    role, content = _role_and_content(value, name)
    fields = {"role": ROLES.get(role, role), "content": _content(content, f"{name}.content")}
    fields |= {k: v for k, v in value.items() if k not in ("role", "content", "from", "value")}
    is_trained = _is_trained(fields, name)
    if is_call := role in CALLS:
        fields |= {"content": None, "tool_calls": _calls_in(content, name)}
    fields["tool_calls"] = _tool_calls(fields, name) or None
    reasoning = _reasoning(fields, name)
    if reasoning is not None:
        fields |= dict.fromkeys(REASONING, reasoning)
    present = {k: v for k, v in fields.items() if v is not None and k not in FLAGS}
    present.pop("function_call", None)
    return Message(present, is_trained, is_call)


def _role_and_content(message: Fields, name: str) -> tuple[str, object]:
    if "from" not in message:
        if not isinstance(role := message.get("role"), str):
            raise InputError(f"field '{name}' has no 'role' (found {listed(message)})")
        return role, message.get("content")
    if (sender := text_of(message, "from")) not in KNOWN_ROLES:  # a template would write it
        raise InputError(
            f"field '{name}' is from {quoted(sender)}, which is not one of the known roles: "
            f"{', '.join(sorted(KNOWN_ROLES))}"
        )
    return sender, text_of(message, "value")


def _content(content: object, name: str) -> object:
    if not isinstance(content, list):
        if not isinstance(content, str | None):  # a template would write it as Python does
            raise InputError(f"field '{name}' is {kind_of(content)}, not a string")
        return content
    for k, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise InputError(f"field '{name}[{k}]' is {kind_of(part)}, not a part with a 'type'")
        if kind.removeprefix("input_").startswith(_MEDIA):
            raise InputError(f"field '{name}[{k}]' is of type {quoted(kind)}; only text is trained")
        if kind == "text" and not isinstance(part.get("text"), str):
            raise InputError(
                f"field '{name}[{k}].text' is {kind_of(part.get('text'))}, not a string"
            )
    return Parts(content)


def _is_trained(message: Fields, name: str) -> bool:
    flags = {flag: message[flag] for flag in FLAGS if message.get(flag) is not None}
    for flag, value in flags.items():
        if value not in (0, 1):
            raise InputError(
                f"field '{name}.{flag}' is {quoted(str(value))}; a turn is trained (1 or true) or "
                "not (0 or false)"
            )
        if value and message["role"] != ASSISTANT and flag != "weight":
            raise InputError(f"field '{name}.{flag}': only turns of the assistant are trained")
    return all(flags.values())


def _reasoning(message: Fields, name: str) -> str | None:
    """The reasoning of a message, under whichever of its names; None if there is none."""
    given = {key: message[key] for key in REASONING if message.get(key) is not None}
    for key, value in given.items():
        if not isinstance(value, str):
            raise InputError(f"field '{name}.{key}' is {kind_of(value)}, not a string")
    if len({value for value in given.values() if value}) > 1:
        raise InputError(f"field '{name}' has several reasoning fields: {listed(given)}; keep one")
    return next(iter(given.values()), None)


def _calls_in(content: object, name: str) -> list[Any]:
    """Tool calls written as JSON: a single call, or a list."""
    calls = json_value(content) if isinstance(content, str) else None
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls
    ):
        raise InputError(f"field '{name}' is not a tool call: JSON with 'name' and 'arguments'")
    return [{"type": "function", "function": call} for call in calls]


def _tool_calls(message: Fields, name: str) -> list[Any]:
    calls: list[Any] = json_of(message.get("tool_calls"), f"{name}.tool_calls", list) or []
    old = message.get("function_call")
    if not is_empty(old):
        if calls or not isinstance(old, dict):
            raise InputError(f"field '{name}.function_call' is no object, or there are other calls")
        calls = [{"type": "function", "function": old}]
    for k, call in enumerate(calls):
        if not isinstance(call, dict):
            raise InputError(f"field '{name}.tool_calls[{k}]' is {kind_of(call)}, not an object")
    return [_with_arguments(call) for call in calls]


def _with_arguments(call: Fields) -> Fields:
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _with_arguments(function)}
    arguments = value = call.get("arguments")
    if isinstance(arguments, str):
        value = json_value(arguments)
    if not isinstance(value, dict):
        return call
    text = arguments if isinstance(arguments, str) else json.dumps(value, ensure_ascii=False)
    return {**call, "arguments": Arguments(value, text)}
