"""Which process it was, so that another one can tell whether it still lives."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dynapipe_hpc.job.process_state import state_of

_STARTED = 19  # field 22 of /proc/PID/stat, counted from the one after the name


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told from all others, of other hosts and of times before a reboot too.

    Attributes:
        boot: Id that the kernel drew when it started; empty where it does not say.
        names: Name space of process ids.
        pid: Process id.
        started: Start of the process in clock ticks after that of the kernel; empty where the
            kernel does not say.
    """

    boot: str
    names: str
    pid: int
    started: str

    @classmethod
    def of_this_process(cls) -> Self:
        """The identity of this process."""
        pid = os.getpid()
        return cls(_boot(), _names(), pid, _started(pid))

    def is_alive(self) -> bool | None:
        """Whether the process lives; None if it is out of sight: elsewhere, or in a container."""
        if not self.boot or (self.boot, self.names) != (_boot(), _names()):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # of another user
            return True
        return _started(self.pid) == self.started and state_of(self.pid) != "gone"


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _names() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    after_name = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return after_name[_STARTED] if after_name else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
