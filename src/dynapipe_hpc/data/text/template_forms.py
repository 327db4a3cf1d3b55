"""Forms of messages: templates differ in how they take lists, arguments and missing content."""

from typing import Any

from dynapipe_hpc.data.text.messages import Arguments, Fields, Parts


def forms_of(messages: list[Fields]) -> list[list[Fields]]:
    """The messages in every form that a template may take, likeliest first.

    Content is a list of parts, or their joined text; arguments of calls are an object, or JSON in a
    string; content that is not there is missing, or null.
    """
    forms = [messages]
    for change in (_with_joined_parts, _with_written_arguments, _with_null_content):
        changed = [[change(message) for message in form] for form in forms]
        forms += [new for new, form in zip(changed, forms, strict=True) if new != form]
    return forms


def _with_joined_parts(message: Fields) -> Fields:
    content = message.get("content")
    if not isinstance(content, Parts) or content.other_types:
        return message
    return {**message, "content": "".join(part["text"] for part in content)}


def _with_written_arguments(message: Fields) -> Fields:
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_written(call) for call in message["tool_calls"]]}


def _written(value: Any) -> Any:
    match value:
        case Arguments():
            return value.as_json_text
        case dict():
            return {name: _written(each) for name, each in value.items()}
        case _:
            return value


def _with_null_content(message: Fields) -> Fields:
    return {"content": None, **message}
