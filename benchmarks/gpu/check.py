"""Check of a machine with a GPU: one command, at most nine minutes.

    make gpu-check [PYTHON=...] [OUT=FOLDER] [STEPS="attention layers"] [REHEARSE=1]

A step is a file in `benchmarks/gpu/steps`, which runs as a process with a time limit of its own.
What fails or takes too long does not end the check, unless it is the installation. OUT receives
gpu_check.json, written again after every step. The first steps install this
checkout from wheels that `make gpu-wheels` fetched, so no network is needed: PYTHON needs torch,
numpy and h5py, and the machine CMake and a compiler. REHEARSE=1 takes tiny sizes on whatever device
there is: it shows that the steps work, and measures nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu.finding import FILE, FOLDER, READY, REHEARSAL

ROOT = Path(__file__).parents[2]
LIMIT_S = 540.0
ENOUGH_S = 5.0  # less is not worth starting a step
INSTALL = "install"
STEPS = {
    "versions": 40.0,  # the first to load torch
    INSTALL: 90.0,
    "device_tests": 60.0,
    "nccl_alone": 30.0,
    "attention": 60.0,
    "layers": 75.0,
    "allocator": 60.0,
    "training": 240.0,
    "shared_device": 75.0,
    "two_ranks": 60.0,
}
"""Time limits by step, in order; the last steps may have less, for the limit of the whole check."""
# As the Makefile sets them: several ranks share few cores, and Open MPI is asked to run as root.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
PATIENCE_S = 3.0  # for MPI to end its ranks
LOG_LINES = 25


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--out", type=Path, default=ROOT / "build")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    folder, out = arguments.folder.resolve(), arguments.out.resolve()
    for path in (folder, out):
        path.mkdir(parents=True, exist_ok=True)
    check(arguments.steps, folder, out, rehearse=arguments.rehearse)


def check(names: Sequence[str], folder: Path, out: Path, *, rehearse: bool) -> None:
    """Runs steps one after the other, and writes about them after each."""
    started_s, outcomes = time.monotonic(), list[Outcome]()
    facts = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "rehearsal": rehearse}
    for name in names:
        left_s = LIMIT_S - (time.monotonic() - started_s)
        if left_s < ENOUGH_S:
            outcomes.append(Outcome(name, "no time left", 0.0, 0.0))
        elif any(done.name == INSTALL and done.status != "done" for done in outcomes):
            outcomes.append(Outcome(name, "not run: the package is not installed", 0.0, 0.0))
        else:
            python, limit_s = python_of(name, folder), min(STEPS[name], left_s)
            command = [str(python), "-m", f"gpu.steps.{name}"]
            environment = environment_of(python, folder, rehearse=rehearse)
            outcomes.append(run_step(name, command, limit_s, folder, environment))
        facts["seconds"] = round(time.monotonic() - started_s)
        say(outcomes[-1])
        content = {**facts, "steps": [asdict(outcome) for outcome in outcomes]}
        text = json.dumps(content, indent=1) + "\n"
        (out / "gpu_check.json").write_text(text, encoding="utf-8")


def python_of(name: str, folder: Path) -> Path:
    """The interpreter of a step: that of the installed environment, once there is one."""
    env = folder / "env"
    is_before = name in ("versions", INSTALL)
    is_there = (env / READY).exists() and not is_before
    return env / "bin" / "python" if is_there else Path(sys.executable)


def environment_of(python: Path, folder: Path, *, rehearse: bool) -> dict[str, str]:
    """The environment variables of a step."""
    own = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}",
        FOLDER: str(folder),
        REHEARSAL: "1" if rehearse else "0",
    }
    return os.environ | SETTINGS | own


def say(outcome: Outcome) -> None:
    """Prints what a step found, and the last lines of one that failed."""
    print(f"{outcome.name}: {outcome.status}, {outcome.seconds} s")
    for each in outcome.findings:
        mark = "NOT AS EXPECTED" if each["holds"] is False else ""
        print(f"  {each['name']:44} {each['found']!s:24} {each['expected']:30} {mark}".rstrip())
    print(*(f"  | {line}" for line in outcome.log), sep="\n", flush=True)


def commit() -> str:
    """Commit of this checkout; "unknown" in a copy without its history."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


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


if __name__ == "__main__":
    main()
