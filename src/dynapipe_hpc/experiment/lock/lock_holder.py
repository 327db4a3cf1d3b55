"""The holder of a run-folder lock, as stored in the lock file."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.job.process import ProcessIdentity

SINCE = "%Y-%m-%d %H:%M:%S UTC"
"""Format of times, which compare as texts."""
_MAX_BYTES = 4096
_MAX_PROCESSES = 2**22  # of Linux


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A process that holds a lock.

    Attributes:
        host: Name of its host.
        job: Identifier of its batch job; empty if there is none.
        since: Time at which the process took the lock, in UTC.
        process: The process; None if the file does not say.
    """

    host: str
    job: str
    since: str
    process: ProcessIdentity | None

    @classmethod
    def this_process(cls, job: str) -> Self:
        """This process as a holder since now."""
        since = datetime.now(UTC).strftime(SINCE)
        return cls(platform.node(), job, since, ProcessIdentity.of_this_process())

    def __str__(self) -> str:
        """Names host, job and start for a message."""
        if self.process is None:
            return "whose lock file does not say which process it is"
        job = f", {self.job}" if self.job else ""
        return f"process {self.process.pid} on {self.host}{job}, since {self.since}"

    def is_alive(self) -> bool | None:
        """Whether the process is alive; None if that cannot be seen from this host."""
        return None if self.process is None else self.process.is_alive()

    def write(self, path: Path) -> None:
        """Writes the file and flushes it to disk, so that it is complete before others see it."""
        with path.open("x", encoding="utf-8") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())


_UNKNOWN = LockHolder("", "", "", None)


def read_holder(path: Path) -> LockHolder:
    """Reads a lock file; if it cannot be read, the holder is unknown."""
    try:
        facts = json.loads(read_input(path, _MAX_BYTES))
        process = facts["process"]
        identity = ProcessIdentity(
            str(process["boot"]),
            str(process["names"]),
            int(process["pid"]),
            str(process["started"]),
        )
        if not 0 < identity.pid <= _MAX_PROCESSES:
            return _UNKNOWN
        return LockHolder(str(facts["host"]), str(facts["job"]), str(facts["since"]), identity)
    except (InputError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return _UNKNOWN
