"""Parts of text files, each of which one process reads."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.open_lines import LineFile, open_lines

BLOCK_BYTES = 1 << 17
MAX_LINE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class TextPart:
    """The lines of a file that begin in a range of bytes.

    `end`: First byte after the range; None for the end of the file, wherever that is.
    """

    path: Path
    start: int = 0
    end: int | None = None

    def lines_before(self) -> int:
        """Number of lines that begin before the part; reads the file up to there."""
        if self.start == 0:
            return 0
        left, count = self.start - 1, 1
        try:
            with self.path.open("rb") as file:
                while data := file.read(min(left, BLOCK_BYTES)):
                    left -= len(data)
                    count += data.count(b"\n")
        except OSError as error:
            raise _unreadable_error(self.path, error) from None
        return count


@dataclass(frozen=True, slots=True)
class Lines:
    """Some consecutive lines of a part.

    `first`: Number of the first line in the part, from 1. `lines`: Lines as bytes, not decoded.
    """

    part: TextPart
    first: int
    lines: list[bytes]

    @property
    def n_bytes(self) -> int:
        """Size of the lines in the file, in bytes."""
        return sum(map(len, self.lines))


def cut(path: Path, n_bytes: int, part_bytes: int) -> list[TextPart]:
    """Cuts a file of `n_bytes` into parts of about equal size, none above `part_bytes`.

    A line belongs to the part in which it begins, so every line is in exactly one part. An empty
    file is one part.
    """
    n_parts = max(1, -(-n_bytes // part_bytes))
    ends = [n_bytes * k // n_parts for k in range(n_parts + 1)]
    return [TextPart(path, start, end) for start, end in pairwise(ends)]


def read_blocks(part: TextPart) -> Iterator[Lines]:
    """Lines of a part, about 128 KiB at a time."""
    first = 1
    try:
        for lines in _blocks(_lines(part)):
            yield Lines(part, first, lines)
            first += len(lines)
    except OSError as error:
        raise _unreadable_error(part.path, error) from None


def _lines(part: TextPart) -> Iterator[bytes]:
    if part.start == 0:
        with open_lines(part.path) as file:
            yield from _lines_until(file, 0, part.end)
        return
    with part.path.open("rb") as text:
        text.seek(part.start - 1)  # the line end before, if a line begins at `start`
        n_before = _next_line(text)[1] - 1
        yield from _lines_until(text, part.start + n_before, part.end)


def _lines_until(file: LineFile, offset: int, end: int | None) -> Iterator[bytes]:
    while end is None or offset < end:
        line, n_bytes = _next_line(file)
        if not line:
            return
        offset += n_bytes
        yield line


def _next_line(file: LineFile) -> tuple[bytes, int]:
    """A line and its size in bytes; only the start of a line too long for memory."""
    line = rest = file.readline(MAX_LINE_BYTES + 1)
    n_bytes = len(line)
    while n_bytes > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
        rest = file.readline(MAX_LINE_BYTES)
        n_bytes += len(rest)
    return line, n_bytes


def _blocks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    n_bytes = 0
    for line in lines:
        block.append(line)
        n_bytes += len(line)
        if n_bytes >= BLOCK_BYTES:
            yield block
            block, n_bytes = [], 0
    if block:
        yield block


def _unreadable_error(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror}")
