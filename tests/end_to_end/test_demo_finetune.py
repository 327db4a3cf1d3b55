"""`make demo-finetune`, with few samples and iterations."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUICK = (
    "TEXTS=300",
    "CHATS=60",
    "SHORTER=--set training.iterations=4 --set training.warmup_iterations=1",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_is_trained_tuned_exported_and_asked(tmp_path: Path) -> None:
    for name in ("configs", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    make = shutil.which("make")
    assert make is not None
    # Nothing is installed: this environment is taken as it is.
    job = subprocess.run(
        [make, "demo-finetune", "-o", "setup", f"BIN={Path(sys.executable).parent}", *QUICK],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    folder = tmp_path / "runs" / "demo_finetune"
    lines = (folder / "tuned" / "run" / "evaluations.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) >= 2
    assert losses[-1] < losses[0]
    asked = job.stdout.partition("ask_transformers.py")[2]
    assert "Which sound does a cow make?" in asked
    for model in ("model", "tuned/model"):
        names = {path.name for path in (folder / model).iterdir()}
        assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
