"""The GPU check goes on whatever becomes of a step, within nine minutes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu import check

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


def test_all_steps_run_and_are_reported(root: Path) -> None:
    steps = results(root)["steps"]
    assert [(step["name"], step["status"]) for step in steps] == [
        ("fails", "failed"),
        ("differs", "done"),
        ("hangs", "over its limit"),
        ("lacking", "lacks a CUDA device"),
    ]
    text = (root / "out" / "gpu_check.txt").read_text()
    assert "ValueError: out of luck" in text
    assert "1 of 4 steps done, 1 findings\nnot as expected: speed\n" in text
    assert "did not end: fails failed; hangs over its limit\n" in text
    assert "could not run: lacking lacks a CUDA device" in text
    (line,) = [line for line in text.splitlines() if line.strip().startswith("speed")]
    assert line.split() == ["speed", "2", "expected", ">", "3", "NOT", "AS", "EXPECTED"]


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
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
