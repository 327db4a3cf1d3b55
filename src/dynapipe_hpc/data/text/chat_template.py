"""Chat templates: from a conversation to text, and to the parts of it that the assistant wrote."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jinja2

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.spans import Span
from dynapipe_hpc.data.text.records import Conversation, texts_in
from dynapipe_hpc.data.text.template_environment import BEGIN, END, compiled

_HAS_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_MARKS = re.compile(f"({BEGIN}|{END})")


class Rendered(NamedTuple):
    """A conversation as text, and the spans of characters that the assistant wrote."""

    text: str
    spans: list[Span]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template of the kind that Hugging Face's tokenizers have.

    Attributes:
        name: Name of the file that it is from.
        source: The template.
        tokens: Special tokens that it may name, such as `bos_token`.
    """

    name: str
    source: str
    tokens: tuple[tuple[str, str], ...] = ()

    def check(self) -> None:
        """Refuses a template that cannot be compiled.

        Raises:
            InputError: It is not a template.
        """
        try:
            compiled(self.source)
        except jinja2.TemplateError as error:
            raise InputError(f"{self.name}: not a chat template: {error}") from None

    def render(self, conversation: Conversation) -> Rendered:
        """Renders a conversation.

        What the assistant wrote is in the `{% generation %}` blocks of the template. In one without
        such blocks, it is what a turn of the assistant adds to the text of the messages before it
        with the generation prompt.

        Raises:
            InputError: The template refuses the conversation, shows no text of the assistant, or
                renders earlier turns otherwise when later ones follow.
        """
        for text in texts_in([conversation.messages, conversation.tools]):
            if "\0" in text:
                raise InputError("a message holds a zero character")
        if not _HAS_GENERATION.search(self.source):
            return self._by_prefixes(conversation)
        text, spans = _without_marks(self._text(conversation, len(conversation.messages)))
        if not spans:
            raise InputError(f"{self.name} generates no text of the assistant")
        return Rendered(text, spans)

    def asking(self, text: str) -> str:
        """What stands before the assistant's answer to a message of the user.

        Raises:
            InputError: The template refuses the message.
        """
        asked = Conversation([{"role": "user", "content": text}])
        return _without_marks(self._text(asked, 1, add_generation_prompt=True)).text

    def _by_prefixes(self, conversation: Conversation) -> Rendered:
        messages = conversation.messages
        whole = self._text(conversation, len(messages))
        spans: list[Span] = []
        for k, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(conversation, k, add_generation_prompt=True)
            until = self._text(conversation, k + 1) if k + 1 < len(messages) else whole
            if not (until.startswith(before) and whole.startswith(until)):
                raise InputError(
                    f"{self.name} renders messages before and after messages[{k}] otherwise when "
                    "it follows, so that what the assistant wrote cannot be found; mark it with "
                    "{% generation %} in a copy of the template: --template FILE"
                )
            if len(before) < len(until):
                spans.append((len(before), len(until)))
        if not spans:
            raise InputError(f"{self.name} shows no text of the assistant")
        return Rendered(whole, spans)

    def _text(
        self, conversation: Conversation, n_messages: int, *, add_generation_prompt: bool = False
    ) -> str:
        values: Mapping[str, Any] = {
            **dict(self.tokens),
            "messages": conversation.messages[:n_messages],
            "tools": conversation.tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return compiled(self.source).render(values)
        except Exception as error:  # whatever a template does with values that it does not expect
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"{self.name} refuses the messages: {quoted(what)}") from None


def _without_marks(marked: str) -> Rendered:
    parts: list[str] = []
    starts: list[int] = []
    spans: list[Span] = []
    n = 0
    for part in _MARKS.split(marked):
        if part == BEGIN:
            starts.append(n)
        elif part == END:
            start = starts.pop()
            if start < n and not starts:
                spans.append((start, n))
        else:
            parts.append(part)
            n += len(part)
    return Rendered("".join(parts), spans)
