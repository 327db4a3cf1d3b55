"""Lines of any source: text (or compressed), JSON arrays, tables, or stdin."""

import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages

BLOCK_BYTES = 1 << 17
MAX_LINE_BYTES = 1 << 24
STDIN = Path("-")
"""Path that stands for standard input."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([kind, 0x2A, 0x4D, 0x18]) for kind in range(0x50, 0x60)))
"""First bytes of frames of text, and of skippable frames, which pzstd writes before them."""
_MAX_ZSTD_WINDOW = 1 << 31
"""Largest window in bytes, as with `zstd --long=31`; a frame takes only the size that it names."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_TABLES = (_PARQUET, _ARROW_FILE, _ARROW_STREAM)
_PEEKED = 1 << 10
_PACKED_BYTES = 1 << 14
_ROWS_AT_A_TIME = 256
"""Rows to convert at a time: as Python objects they take much more memory than in a table."""


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[bytes]]:
    """Opens a source; its first bytes tell its kind. Lines have their ends, but perhaps the last.

    Raises `OSError`: The source cannot be read. Raises `InputError`: It is compressed or a table,
    and damaged; or reading it needs another package.
    """
    if path == STDIN:
        yield from _lines_of(path, sys.stdin.buffer)
        return
    with path.open("rb") as file:
        yield from _lines_of(path, file)


def is_plain_text(path: Path) -> bool:
    """Whether a regular file is lines of text, whose bytes are the bytes of the file.

    Raises `OSError`: The file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(_PEEKED)
    return not start.startswith((_GZIP, *_ZSTD, *_TABLES)) and not _begins_array(start)


def _lines_of(path: Path, file: Any) -> Iterator[Iterator[bytes]]:
    start = file.peek(_PEEKED)
    damage: tuple[type[Exception], ...] = EOFError, zlib.error, gzip.BadGzipFile
    if start.startswith(_GZIP):
        file = io.BufferedReader(gzip.GzipFile(fileobj=file))
    elif start.startswith(_ZSTD):
        with optional_packages():
            import zstandard
        damage = EOFError, zstandard.ZstdError
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
        file = io.BufferedReader(_ZstdText(file, unpacker.decompressobj))
    try:
        if start.startswith(_TABLES):
            yield map(_json_line, _rows(path, file, start))
        elif _begins_array(file.peek(_PEEKED)):
            yield map(_json_line, _elements(path, file))
        else:
            yield _bounded_lines(file)
    except damage as error:
        raise InputError(f"{path}: cannot be unpacked: {error}; copy or pack it again") from None


def _bounded_lines(file: io.BufferedReader) -> Iterator[bytes]:
    """Lines; those that are too long for memory lose their end."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(line) > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES)
        yield line


def _json_line(record: Any) -> bytes:
    # An object stands for a value that JSON cannot represent, such as a date.
    text = json.dumps(record, default=lambda value: {"type": type(value).__name__})
    return text.encode() + b"\n"


def _elements(path: Path, file: io.BufferedReader) -> list[Any]:
    """The elements of an array, which is read as a whole."""
    try:
        elements: list[Any] = json.loads(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8; write the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: begins a JSON array, but is not one ({error}); correct it, or write a record "
            "per line"
        ) from None
    return elements


def _begins_array(start: bytes) -> bool:
    return start.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")


class _ZstdText(io.RawIOBase):
    """Text of all zstd frames; the library's own reader accepts truncated files.

    Raises `EOFError`: The file is truncated.
    """

    def __init__(self, file: BinaryIO, new_frame: Callable[[], Any]) -> None:
        self._file, self._new_frame = file, new_frame
        self._frame: Any = None
        self._packed = self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._text:
            self._packed = self._packed or self._file.read(_PACKED_BYTES)
            if not self._packed:
                if self._frame:
                    raise EOFError("the file ends within a frame")
                return 0
            frame = self._frame or self._new_frame()
            self._text, self._packed = frame.decompress(self._packed), frame.unused_data
            self._frame = None if frame.eof else frame
        n = min(len(buffer), len(self._text))
        buffer[:n], self._text = self._text[:n], self._text[n:]
        return n


def _rows(path: Path, file: BinaryIO, start: bytes) -> Iterator[dict[str, Any]]:
    if path == STDIN:
        raise InputError("standard input: is a Parquet or Arrow table; name its file instead")
    with optional_packages():
        import pyarrow as pa
        from pyarrow import parquet
    try:
        if start.startswith(_PARQUET):
            batches: Any = parquet.ParquetFile(file).iter_batches(_ROWS_AT_A_TIME)
        elif start.startswith(_ARROW_STREAM):
            batches = pa.ipc.open_stream(file)
        else:
            opened = pa.ipc.open_file(file)
            batches = map(opened.get_batch, range(opened.num_record_batches))
        for batch in batches:
            for first in range(0, batch.num_rows, _ROWS_AT_A_TIME):
                rows = batch.slice(first, _ROWS_AT_A_TIME).to_pylist()
                yield from (_without_nulls(row, is_row=True) for row in rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: a damaged table: {error}") from None


def _without_nulls(value: Any, *, is_row: bool = False) -> Any:
    """A value without null fields in its objects; null columns of a row stay."""
    match value:
        case dict():
            kept = {name: each for name, each in value.items() if is_row or each is not None}
            return {name: _without_nulls(each) for name, each in kept.items()}
        case list():
            return [_without_nulls(each) for each in value]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Lines:
    """Some consecutive lines of a source."""

    path: Path
    first: int  # number of the first line in the source, from 1
    lines: list[bytes]  # lines as bytes, not decoded

    @property
    def n_bytes(self) -> int:
        """Size of the lines in bytes."""
        return sum(map(len, self.lines))


def read_blocks(path: Path) -> Iterator[Lines]:
    """Lines of a source, about 128 KiB at a time."""
    block: list[bytes] = []
    first, n_bytes = 1, 0
    try:
        with open_lines(path) as lines:
            for line in lines:
                block.append(line)
                n_bytes += len(line)
                if n_bytes >= BLOCK_BYTES:
                    yield Lines(path, first, block)
                    block, first, n_bytes = [], first + len(block), 0
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if block:
        yield Lines(path, first, block)
