"""A step of the GPU check ends in its time, with all that it started."""

import os
import sys
import time
from pathlib import Path

from gpu.run_step import Outcome, run_step

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOUND = {"name": "speed", "found": 1.235, "expected": "> 1", "holds": True}
FINDS = "from gpu.finding import note, lacks\nnote('speed', 1.23456, '> 1', True)\n"
# As mpiexec does: a child in a process group of its own, which is deaf to polite requests.
HANGS = """
import os, signal, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(60)
time.sleep(60)
"""


def run(folder: Path, program: str, limit_s: float = 20.0) -> Outcome:
    command = [sys.executable, "-c", program, str(folder / "child")]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    return run_step("step", command, limit_s, folder, environment)


def test_a_step_that_fails_keeps_its_findings_and_its_last_words(tmp_path: Path) -> None:
    outcome = run(tmp_path, f"{FINDS}raise ValueError('out of luck')")
    assert (outcome.status, outcome.findings) == ("failed", [FOUND])
    assert outcome.log[-1] == "ValueError: out of luck"


def test_a_step_over_its_limit_ends_with_what_it_started(tmp_path: Path) -> None:
    started_s = time.monotonic()
    outcome = run(tmp_path, f"{FINDS}print('begins', flush=True){HANGS}", limit_s=1.0)
    assert time.monotonic() - started_s < 10
    assert (outcome.status, outcome.findings) == ("over its limit", [FOUND])
    assert outcome.log == ["begins"]
    assert not is_running(int((tmp_path / "child").read_text()))


def test_what_a_step_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    leaves = HANGS.rpartition("time.sleep(60)")[0] + "time.sleep(0.5)\n"
    assert run(tmp_path, leaves).status == "done"
    assert not is_running(int((tmp_path / "child").read_text()))


def is_running(pid: int) -> bool:
    """Whether a process has not ended; it may wait for whoever collects it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
