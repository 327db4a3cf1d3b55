"""The process that runs verbs on bad input, and what guards it."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bad_input.serve import STREAMS

ROOT = Path(__file__).parents[2]
MAX_S = 60.0
# What a sanitizer tells of memory that HDF5 was refused, as by malloc without one.
_REFUSED = re.compile(r"^==\d+==WARNING: AddressSanitizer failed to allocate .*\n", re.MULTILINE)


def environment() -> dict[str, str]:
    """Of processes: MPI may start as any user."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **allowed, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a verb."""

    exit_code: int
    stdout: str
    stderr: str
    grown_bytes: int


@dataclass(slots=True)
class Worker:
    """Runs one verb after the other in one process, which is replaced after a crash."""

    folder: Path
    started_by: Sequence[str] = ()
    _process: "subprocess.Popen[str] | None" = field(default=None)

    def call(self, folder: Path, arguments: Sequence[str]) -> Ended:
        """Runs a verb in a folder."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        # As bytes, one by one: names of files need not be text.
        named = [os.fsencode(argument).decode("latin-1") for argument in arguments]
        process.stdin.write(json.dumps({"folder": str(folder), "arguments": named}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], MAX_S)
        answer = process.stdout.readline() if ready else ""
        stdout, stderr = ((self.folder / name).read_text(errors="replace") for name in STREAMS)
        if not answer:
            self.close()
            how = f"crashes with {process.returncode}" if ready else f"takes over {MAX_S} s"
            raise AssertionError(f"{' '.join(arguments)}: {how}: {stderr[-3000:]}")
        return Ended(stdout=stdout, stderr=_REFUSED.sub("", stderr), **json.loads(answer))

    def close(self) -> None:
        """Ends the process with those that it started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            for name in STREAMS:
                (self.folder / name).touch()
            self._process = subprocess.Popen(
                [*self.started_by, sys.executable, "-m", "tests.bad_input.serve", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=environment(),
                start_new_session=True,
            )
        return self._process
