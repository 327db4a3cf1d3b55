"""Lines of a file that may still be growing."""

from collections.abc import Iterator
from pathlib import Path


def complete_lines(path: Path, most_characters: int) -> Iterator[str]:
    """Lines with their ends, without one that is still being written.

    An overlong line is truncated to `most_characters`, and is the last.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        while (line := file.readline(most_characters)).endswith("\n"):
            yield line
        if len(line) == most_characters:
            yield line
