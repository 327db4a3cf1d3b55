"""One step of the GPU check: a process with a time limit, which leaves nothing behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.finding import FILE

PATIENCE_S = 3.0  # for MPI to end its ranks
LOG_LINES = 25
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a step.

    Attributes:
        name: Its name.
        status: "done", "failed", "over its limit", or "lacks" and what.
        seconds: Time it took.
        limit_s: Time it might take.
        findings: What it found, see `note`.
        log: Last lines of what it printed, if it failed or ran over its limit.
    """

    name: str
    status: str
    seconds: float
    limit_s: float
    findings: Sequence[Mapping[str, Any]] = ()
    log: Sequence[str] = ()


def run_step(
    name: str,
    command: Sequence[str | Path],
    limit_s: float,
    folder: Path,
    environment: Mapping[str, str],
) -> Outcome:
    """Runs a step, and ends it with all that it started when its time is over.

    Args:
        name: Name of the step.
        command: The command.
        limit_s: Time limit.
        folder: Folder for what it finds and prints.
        environment: Environment variables, beside `FILE`.
    """
    findings, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    findings.unlink(missing_ok=True)
    started_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**environment, FILE: str(findings)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(process)
    seconds = time.monotonic() - started_s
    lines = _read(findings)
    status = _status(code, [line["lacks"] for line in lines if "lacks" in line])
    # Paths within this checkout alone, as results are shared.
    lines_of_log = log.read_text(errors="replace").replace(f"{ROOT}/", "").splitlines()
    return Outcome(
        name,
        status,
        round(seconds, 1),
        round(limit_s, 1),
        [line for line in lines if "name" in line],
        lines_of_log[-LOG_LINES:] if status in ("failed", "over its limit") else (),
    )


def end_session(leader: "subprocess.Popen[bytes]") -> None:
    """Ends all processes of a session; MPI starts its ranks in process groups of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + PATIENCE_S
        for pid in _of_session(leader.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while time.monotonic() < deadline_s:
            if leader.poll() is not None and not any(_of_session(leader.pid)):
                return
            time.sleep(0.02)


def _of_session(session: int) -> Iterator[int]:
    """The processes of a session that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of_process, *_ = path.read_text().rpartition(")")[2].split()
            if int(of_process) == session and state not in "ZX":
                yield int(path.parent.name)


def _read(findings: Path) -> list[dict[str, Any]]:
    """The findings; the last line may be incomplete if the step was ended."""
    lines = []
    with suppress(FileNotFoundError, ValueError):
        for line in findings.read_text(encoding="utf-8").splitlines():
            lines.append(json.loads(line))  # noqa: PERF401, those before a broken line count
    return lines


def _status(code: int | None, missing: Sequence[str]) -> str:
    if code is None:
        return "over its limit"
    if code:
        return "failed"
    return f"lacks {'; '.join(missing)}" if missing else "done"
