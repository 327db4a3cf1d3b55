"""The process that runs verbs on bad input, what guards it, and when an error is clear."""

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.jobs.ready_ranks import ReadyRanks

# What a sanitizer tells of memory that HDF5 was refused, as by malloc without one.
_REFUSED = re.compile(r"^==\d+==WARNING: AddressSanitizer failed to allocate .*\n", re.MULTILINE)


def environment() -> dict[str, str]:
    """Of processes: MPI may start as any user."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **allowed, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    stdout: str
    stderr: str
    grown_bytes: int


@dataclass(slots=True)
class Worker:
    """Runs one verb after the other in one process, which is replaced after a crash."""

    started_by: Sequence[str] = ()
    _process: ReadyRanks | None = field(default=None)

    def call(self, folder: Path, arguments: Sequence[str]) -> Ended:
        if self._process is None or not self._process.is_running:
            self.close()
            self._process = ReadyRanks(self.started_by, environment())
        ended, process = self._process.finish(folder, arguments), self._process
        stderr = _REFUSED.sub("", ended.stderr)
        return Ended(ended.returncode, ended.stdout, stderr, process.grown_bytes)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


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
    while_it_runs: AbstractContextManager[object] = nullcontext(),  # noqa: B008 - has no state
) -> None:
    """Exit code 2 and one message, nothing written."""
    COUNTS["tried"] += 1
    before = listing(folder)
    with while_it_runs:
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
