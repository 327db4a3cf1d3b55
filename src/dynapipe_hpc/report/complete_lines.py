"""Lines of a file that may still be growing."""

import os
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


def last_lines(path: Path, most_bytes: int) -> list[str]:
    """The last complete lines of a file, as many as fit; none if there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes - 1))
        is_whole = file.tell() == 0
        lines = file.read().decode(errors="replace").split("\n")
    return lines[:-1] if is_whole else lines[1:-1]
