"""`make demo-preferences`, with few samples and iterations."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = (
    "CHATS=60",
    "PAIRS=60",
    "SHORTER=--set training.iterations=4 --set training.warmup_iterations=1",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_learns_to_prefer_right_answers(tmp_path: Path) -> None:
    for name in ("configs", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    make = shutil.which("make")
    assert make is not None
    # Nothing is installed: this environment is taken as it is.
    job = subprocess.run(
        [make, "demo-preferences", "-o", "setup", f"BIN={Path(sys.executable).parent}", *QUICK],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    folder = tmp_path / "runs" / "demo_preferences"
    lines = (folder / "preferred" / "evaluations.jsonl").read_text().splitlines()
    first, *_, last = [json.loads(line) for line in lines]
    assert last["loss"] < first["loss"]
    assert "accuracy of preferences, last" in job.stdout
