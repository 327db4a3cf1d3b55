"""Identity of a process, by which another process can tell whether it is still alive."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dynapipe_hpc.job.process_state import state_of

_STARTED = 19  # field 22 of /proc/PID/stat, counted from the one after the name


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process, unique over hosts and reboots.

    Attributes:
        boot: Boot id of the kernel; empty where the kernel does not give one.
        names: PID namespace; empty where the kernel does not give one.
        pid: Process id.
        started: Start time of the process in clock ticks after boot; empty where the kernel does
            not give one.
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
        """Whether the process is alive; None if that is unknown (another host or container)."""
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
