"""Formats of records, by the names that commands give them."""

from enum import StrEnum


class RecordFormat(StrEnum):
    """Shape of the records of a source.

    Attributes:
        PAIRS: An input and a target, in fields of any name.
        ALPACA: `instruction`, `input` (may be missing or empty) and `output`.
        MESSAGES: A conversation: `messages` of `role` and `content` (OpenAI), or `conversations` of
            `from` and `value` (ShareGPT), or `prompt` and `completion` of messages (TRL).
        TEXT: `text`, all of which is the target.
        PREFERENCES: Two answers to one prompt, as texts: `chosen`, `rejected` and `prompt`, see
            `text_preference`.
        CHAT_PREFERENCES: The same as messages, see `chat_preference`.
    """

    PAIRS = "pairs"
    ALPACA = "alpaca"
    MESSAGES = "messages"
    TEXT = "text"
    PREFERENCES = "preferences"
    CHAT_PREFERENCES = "chat_preferences"

    @property
    def has_pairs(self) -> bool:
        """Whether the records are preference pairs."""
        return self in (RecordFormat.PREFERENCES, RecordFormat.CHAT_PREFERENCES)

    @property
    def needs_template(self) -> bool:
        """Whether the records are messages, which a chat template renders."""
        return self in (RecordFormat.MESSAGES, RecordFormat.CHAT_PREFERENCES)
