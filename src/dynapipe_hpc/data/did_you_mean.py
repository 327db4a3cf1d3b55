"""The nearest known word, for messages about words that are not known."""

import difflib
from collections.abc import Sequence


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The nearest known word, as the end of a message; empty if none is near."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
