"""Definition of a clear error."""

import hashlib
import re
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.bad_input.worker import Ended, Worker

MAX_MESSAGE_CHARACTERS = 2000
MAX_GROWN_BYTES = 400 * 2**20
MAX_HASHED_BYTES = 2**27

COUNTS: Counter[str] = Counter()
"""Of this session: what was tried, what ended in a clear error and what went through."""


def assert_refused(
    worker: Worker,
    folder: Path,
    arguments: Sequence[str],
    words: str,
    start: str = "dynapipe-hpc: ",
) -> None:
    """Exit code 2 and one message, nothing written."""
    COUNTS["tried"] += 1
    before = listing(folder)
    ended = worker.call(folder, arguments)
    assert_clear(ended, start)
    assert re.search(words, ended.stderr), ended.stderr
    assert listing(folder) == before
    COUNTS["clear"] += 1


def assert_refused_or_done(worker: Worker, folder: Path, arguments: Sequence[str]) -> bool:
    """Either goes through, or is refused as `assert_refused` says; returns whether refused."""
    before = listing(folder)
    ended = worker.call(folder, arguments)
    if ended.exit_code == 0:
        assert not ended.stderr, ended.stderr
        COUNTS["harmless"] += 1
        return False
    COUNTS["tried"] += 1
    assert_clear(ended)
    assert listing(folder) == before
    COUNTS["clear"] += 1
    return True


def assert_clear(ended: Ended, start: str = "dynapipe-hpc: ") -> None:
    """Exit code 2 and one message that a terminal can show."""
    message = ended.stderr
    assert "Traceback" not in message, message
    assert ended.exit_code == 2, (ended.exit_code, message, ended.stdout)
    assert message.startswith(start), message
    assert message.endswith("\n"), message
    assert len(message) <= MAX_MESSAGE_CHARACTERS, (len(message), message[:MAX_MESSAGE_CHARACTERS])
    odd = {character for character in message if not character.isprintable()} - {"\n"}
    assert not odd, (odd, message)
    assert ended.grown_bytes < MAX_GROWN_BYTES, (ended.grown_bytes, message)


def listing(folder: Path) -> dict[str, tuple[int, str]]:
    """Everything below a folder: what it is, and the hash of what it holds."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, _content(path))
        for path in sorted(folder.rglob("*"))
    }


def _content(path: Path) -> str:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return ""
    if status.st_size > MAX_HASHED_BYTES:
        return f"{status.st_size} bytes"
    return hashlib.sha256(path.read_bytes()).hexdigest()
