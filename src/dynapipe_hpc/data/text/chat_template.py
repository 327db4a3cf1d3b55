"""Chat templates: from a conversation to its text, and to the marked parts of the text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import jinja2
from jinja2 import nodes

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.text.conversation import Conversation
from dynapipe_hpc.data.text.messages import ASSISTANT, REASONING, Arguments, Fields, Parts
from dynapipe_hpc.data.trained_tokens import Span


def check_template(name: str, source: str) -> None:
    """Refuses what is not a template, and templates whose marks `transformers` would misplace."""
    try:
        tree = _compiled(source).environment.parse(source)
    except jinja2.TemplateError as error:
        raise InputError(f"{name}: not a chat template: {error}") from None
    for outer in tree.find_all(_JOINED):
        if _is_mark(outer) or (isinstance(outer, nodes.For) and not outer.recursive):
            continue
        for block in filter(_is_mark, outer.find_all(nodes.CallBlock)):
            raise InputError(
                f"{name}: has {{% generation %}} in a macro, call, block, filter, assignment or "
                f"recursive loop (line {block.lineno}), where transformers does not know its "
                "place; move or remove it in a copy of the template: preprocess --template FILE"
            )


_JOINED = (
    *(nodes.Macro, nodes.CallBlock, nodes.Block, nodes.FilterBlock, nodes.AssignBlock, nodes.For),
)
"""Parts of a template whose text may be joined before output; of loops, only recursive ones."""


def _is_mark(node: nodes.Node) -> bool:
    """Whether a node is a `{% generation %}` block, the only block that an extension makes."""
    return isinstance(node, nodes.CallBlock) and isinstance(
        node.call.node, nodes.ExtensionAttribute
    )


DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of templates, of which a tokenizer may have several."""
_SHOWN = (("tools",), ("tool_calls",), ("parallel_tool_calls",), REASONING)
"""Fields that a template must know if a conversation has them, each with all its names."""
_HAS_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class RefusalError(InputError):
    """A template refuses messages."""


class Rendered(NamedTuple):
    """A conversation as text.

    `turn_ends`: Positions where turns of the assistant end, including turns that are only read.
    """

    text: str
    spans: list[Span]
    turn_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatText:
    """A conversation in the form that a template accepts."""

    name: str
    source: str
    values: Mapping[str, Any]
    messages: list[Fields]
    rendered: dict[tuple[int, bool], Rendered] = field(default_factory=dict, init=False)

    @property
    def has_marks(self) -> bool:
        """Whether the template marks what the assistant writes."""
        return _HAS_GENERATION.search(self.source) is not None

    def until(self, n_messages: int, *, asks: bool = False) -> Rendered:
        """Text of the first messages, with the spans that the template marks.

        Raises `RefusalError`: The template refuses them.
        """
        if (n_messages, asks) not in self.rendered:
            self.rendered[n_messages, asks] = self._render(n_messages, asks)
        return self.rendered[n_messages, asks]

    def _render(self, n_messages: int, asks: bool) -> Rendered:
        messages = self.messages[:n_messages]
        values = {**self.values, "messages": messages, "add_generation_prompt": asks}
        template = _compiled(self.source)
        try:
            return _rendered(template, values, has_marks=self.has_marks)
        except Exception as error:  # whatever a template does with values that it does not expect
            what = f"{type(error).__name__}: {error}"
            raise RefusalError(f"{self.name} refuses the messages: {quoted(what)}") from None

    def whole(self) -> Rendered:
        return self.until(len(self.messages))

    def answering(self, k: int, content: str) -> Self:
        """The same conversation, with `content` from the assistant as its message `k`."""
        answer = {"role": ASSISTANT, "content": content}
        return replace(self, messages=[*self.messages[:k], answer, *self.messages[k + 1 :]])


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template of the kind that Hugging Face's tokenizers have.

    `templates`: Templates by name: `default`, and `tool_use` for conversations with tools; others
    are not used. `tokens`: Special tokens that templates may name, such as `bos_token`.
    """

    name: str
    templates: Mapping[str, str]
    tokens: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuses a template that cannot be used."""
        for name in (DEFAULT, TOOL_USE):
            check_template(self.name, self.templates.get(name, ""))

    def apply(self, conversation: Conversation) -> ChatText:
        """A conversation in the first form that the template accepts."""
        source = self._source_for(conversation)
        self._check_shown(conversation, source)
        values = {"documents": None, **self.tokens, **conversation.values}
        values["tools"] = conversation.tools
        messages = conversation.messages
        if "developer" not in source:
            system = {"role": "system"}  # the older name of this role
            messages = [{**m, **system} if m["role"] == "developer" else m for m in messages]
        for form in forms_of(messages):
            chat = ChatText(self.name, source, values, form)
            try:
                chat.whole()
            except RefusalError as error:
                refusal = error
            else:
                return chat
        raise _refusal_error(refusal, messages)

    def asking(self, text: str) -> str:
        """The text before the assistant's answer to a message of the user."""
        question = Conversation([{"role": "user", "content": text}])
        return self.apply(question).until(1, asks=True).text

    def _source_for(self, conversation: Conversation) -> str:
        if conversation.tools and TOOL_USE in self.templates:
            return self.templates[TOOL_USE]
        if DEFAULT not in self.templates:
            raise InputError(
                f"{self.name} has templates of the names {', '.join(sorted(self.templates))}, but "
                f"none is named {DEFAULT}; name a file: preprocess --template FILE"
            )
        return self.templates[DEFAULT]

    def _check_shown(self, conversation: Conversation, source: str) -> None:
        """Refuses fields whose names the template does not know: they would vanish."""
        given = {
            name for message in conversation.messages for name, value in message.items() if value
        }
        given |= conversation.values.keys() | ({"tools"} if conversation.tools else set())
        for names in _SHOWN:
            if not given.isdisjoint(names) and not any(name in source for name in names):
                raise InputError(
                    f"{self.name} does not show the field '{names[0]}'; name a template that does "
                    "(preprocess --template FILE), or remove the field"
                )


def _refusal_error(refusal: RefusalError, messages: list[Fields]) -> InputError:
    """The refusal of all forms of messages, with what may be its reason."""
    for k, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, Parts) and content.other_types:
            kind = quoted(content.other_types[0])
            return InputError(f"messages[{k}] has content of type {kind}, but only text is trained")
        if content is None and "tool_calls" not in message:
            return InputError(
                f"{refusal}; messages[{k}] (role {quoted(message['role'])}) has null content: "
                'write "" if it says nothing, or name another template: preprocess --template FILE'
            )
    return refusal


def _compiled(source: str) -> Any:
    """A template compiled in the environment of `transformers`, which caches it.

    `transformers` itself also copies all values before rendering, which takes longer than
    rendering; values from JSON need no copy. Values that must not be printed raise an error if
    they are.
    """
    with optional_packages():
        from transformers.utils.chat_template_utils import _compile_jinja_template
    return _compile_jinja_template(source)


def _rendered(template: Any, values: Mapping[str, Any], *, has_marks: bool) -> Rendered:
    if not has_marks:
        return Rendered(template.render(values), [])
    blocks: list[str] = []
    marks: list[Span] = []
    with template.environment.activate_tracker(blocks, marks):
        blocks.extend(template.generate(values))  # one by one: the tracker reads the list meanwhile
    spans: list[Span] = []
    # Leaves out marks inside other marks, and empty ones.
    for start, end in sorted(marks, key=lambda mark: (mark[0], -mark[1])):
        if start < end and (not spans or start >= spans[-1][1]):
            spans.append((start, end))
    return Rendered("".join(blocks), spans)


def forms_of(messages: list[Fields]) -> list[list[Fields]]:
    """The messages in every form that a template may take, likeliest first.

    Content is a list of parts, or their joined text; arguments of calls are an object, or JSON in a
    string; absent content is missing, or null.
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
