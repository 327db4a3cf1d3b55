"""Findings of a step of the GPU check: lines of JSON, which are kept if the step is ended."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

FILE, FOLDER, REHEARSAL = "GPU_CHECK_FINDINGS", "GPU_CHECK_FOLDER", "GPU_CHECK_REHEARSAL"
"""Names of environment variables: the file of findings, the folder of all steps, and whether steps
take tiny sizes on whatever device there is."""
READY = ".ready"
"""Name of the file that says that an environment is complete."""


def note(name: str, value: object, expected: str = "", holds: bool | None = None) -> None:
    """Notes a finding.

    Args:
        name: What was looked at.
        value: What was found; numbers are shortened to four digits.
        expected: What should be found, in words; empty if nothing is expected.
        holds: Whether it was; None if nobody can say, as in a rehearsal.
    """
    shown = value
    if isinstance(value, float):  # JSON has no NaN
        shown = float(f"{value:.4g}") if math.isfinite(value) else None
    held = None if rehearses() else holds
    _write({"name": name, "found": shown, "expected": expected, "holds": held})


def lacks(what: str) -> NoReturn:
    """Ends the step, as something is not there that it cannot do without."""
    _write({"lacks": what})
    sys.exit(0)


def rehearses() -> bool:
    """Whether steps only show that they work."""
    return os.environ.get(REHEARSAL) == "1"


def folder() -> Path:
    """Folder in which steps leave what later ones use."""
    path = Path(os.environ.get(FOLDER, "build/gpu-check"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def _write(line: dict[str, Any]) -> None:
    text = json.dumps(line, default=str)
    path = os.environ.get(FILE)
    if path is None:  # a step started by hand
        print(text, flush=True)
        return
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text + "\n")
