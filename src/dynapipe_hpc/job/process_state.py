"""State of a process according to the operating system."""

from pathlib import Path

_STATES = {"T": "stopped", "t": "stopped", "D": "waits for a disk", "Z": "gone", "X": "gone"}


def state_of(pid: int) -> str:
    """State of a process: "runs", "stopped", "waits for a disk" or "gone"."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return "gone"
    return _STATES.get(after_name.split()[0], "runs")
