import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.command_line import run_python

from gpu import check
from gpu.check import Outcome, run_step

ROOT = Path(__file__).parents[2]
STEPS = {
    "fails": "raise ValueError('out of luck')",
    "differs": "from gpu.finding import note\nnote('speed', 2, '> 3', False)",
    "hangs": "import time\ntime.sleep(60)",
    "lacking": "from gpu.finding import lacks\nlacks('a CUDA device')",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with other steps."""
    steps = tmp_path / "benchmarks" / "gpu" / "steps"
    steps.mkdir(parents=True)
    shutil.copy(ROOT / "benchmarks" / "gpu" / "finding.py", steps.parent)
    for name, program in STEPS.items():
        (steps / f"{name}.py").write_text(program + "\n")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "STEPS", dict.fromkeys(STEPS, 10.0) | {"hangs": 0.5})
    return tmp_path


def results(root: Path) -> dict[str, Any]:
    for folder in ("work", "out"):
        (root / folder).mkdir()
    check.check(list(STEPS), root / "work", root / "out", rehearse=False)
    found: dict[str, Any] = json.loads((root / "out" / "gpu_check.json").read_text())
    return found


def test_all_steps_run_and_are_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = results(root)["steps"]
    assert [(step["name"], step["status"]) for step in steps] == [
        ("fails", "failed"),
        ("differs", "done"),
        ("hangs", "over its limit"),
        ("lacking", "lacks a CUDA device"),
    ]
    text = capsys.readouterr().out
    assert "  | ValueError: out of luck\n" in text
    (line,) = [line for line in text.splitlines() if line.strip().startswith("speed")]
    assert line.split() == ["speed", "2", ">", "3", "NOT", "AS", "EXPECTED"]


def test_the_check_as_a_whole_has_a_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LIMIT_S", 0.0)
    assert {step["status"] for step in results(root)["steps"]} == {"no time left"}


def test_the_installed_environment_is_used_once_it_is_complete(tmp_path: Path) -> None:
    env = tmp_path / "env"
    (env / "bin").mkdir(parents=True)
    installed = env / "bin" / "python"
    assert check.python_of("layers", tmp_path) != installed
    (env / ".ready").touch()
    assert check.python_of("layers", tmp_path) == installed
    assert check.python_of("install", tmp_path) != installed


def test_every_step_has_a_file_of_its_name() -> None:
    files = {path.stem for path in (ROOT / "benchmarks" / "gpu" / "steps").glob("*.py")}
    assert files == set(check.STEPS)
    assert check.LIMIT_S <= 9 * 60


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_all_steps_can_be_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    """All but the installation, whose wheels are fetched by hand."""
    names = [name for name in check.STEPS if name != "install"]
    check.check(names, tmp_path, tmp_path, rehearse=True)
    steps = json.loads((tmp_path / "gpu_check.json").read_text())["steps"]
    status = {step["name"]: step["status"] for step in steps}
    lacking = {"versions", "device_tests"}
    assert {name for name, told in status.items() if told == "lacks a CUDA device"} <= lacking
    assert {told for name, told in status.items() if name not in lacking} == {"done"}, steps


def test_the_driver_needs_nothing_but_python() -> None:
    """It runs before anything is installed."""
    program = (
        "import gpu.check, sys; print(sorted({'torch', 'numpy', 'pydantic'} & {*sys.modules}))"
    )
    done = run_python(program, variables={"PYTHONPATH": str(ROOT / "benchmarks")})
    assert done.stdout == "[]\n", done.stderr


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
