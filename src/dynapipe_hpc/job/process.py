"""Processes of a host: identity and state, and the memory that this one has freed."""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_STATE, _STARTED = 0, 19  # fields 3 and 22 of /proc/PID/stat, counted from after the name
_STATES = {"T": "stopped", "t": "stopped", "D": "waits for a disk", "Z": "gone", "X": "gone"}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of a process, unique over hosts and reboots; empty where the kernel gives none."""

    boot: str
    names: str
    pid: int
    started: str

    @classmethod
    def from_pid(cls, pid: int) -> Self:
        """The process that has a number in this container of this host, if there is one."""
        names, numbers = "", _numbers(pid)
        with suppress(OSError):
            names = str(Path("/proc/self/ns/pid").readlink())
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
        return cls(boot, names, pid, numbers[_STARTED] if numbers else "")

    def is_alive(self) -> bool | None:
        """Whether the process is alive; None if that is unknown (another host or container)."""
        now = self.from_pid(self.pid)
        if not self.boot or (self.boot, self.names) != (now.boot, now.names):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # of another user
            return True
        return now.started == self.started and state_of(self.pid) != "gone"


def state_of(pid: int) -> str:
    """State of a process: "runs", "stopped", "waits for a disk" or "gone"."""
    numbers = _numbers(pid)
    return _STATES.get(numbers[_STATE], "runs") if numbers else "gone"


def _numbers(pid: int) -> list[str]:
    """Fields of a process after its name, as the kernel gives them; empty if it is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)
_NEVER = -1


def keep_freed_memory() -> bool:
    """Lets the C library keep freed memory for the next allocation, whatever its size.

    By default it maps and unmaps every tensor of more than 32 MiB, and returns what is free at the
    end of its heap, so that the kernel clears the same pages in every pass. Threads other than the
    main one have heaps of at most 64 MiB; larger tensors there are still mapped each time.

    Returns whether it does so from now on; C libraries other than glibc have no such setting.
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        return False
    return bool(set_parameter(_MMAP_MAX, 0) and set_parameter(_TRIM_THRESHOLD, _NEVER))
