"""What the system says of a process."""

from pathlib import Path

_STATES = {"T": "stopped", "t": "stopped", "D": "waits for a disk", "Z": "gone", "X": "gone"}


def state_of(pid: int) -> str:
    """What the system says of a process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return "gone"
    return _STATES.get(after_name.split()[0], "runs")
