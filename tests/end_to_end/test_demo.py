"""The demos of the Makefile, with few samples and iterations."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.experiment.load import load_config

ROOT = Path(__file__).parents[2]
SHORTER = "SHORTER=--set training.iterations=4 --set training.warmup_iterations=1"


def make_demo(folder: Path, demo: str, *quick: str) -> str:
    """Output of a target of the Makefile."""
    for name in ("configs", "Makefile"):
        (folder / name).symlink_to(ROOT / name)
    make = shutil.which("make")
    assert make is not None
    # Nothing is installed: this environment is taken as it is.
    job = subprocess.run(
        [make, demo, "-o", "setup", f"BIN={Path(sys.executable).parent}", *quick, SHORTER],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    return job.stdout


def losses(run: Path) -> list[float]:
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_is_trained_tuned_exported_and_asked(tmp_path: Path) -> None:
    said = make_demo(tmp_path, "demo-finetune", "TEXTS=300", "CHATS=60")
    folder = tmp_path / "runs" / "demo_finetune"
    first, *_, last = losses(folder / "tuned" / "run")
    assert last < first
    assert "Which sound does a cow make?" in said.partition("ask_transformers.py")[2]
    for model in ("model", "tuned/model"):
        names = {path.name for path in (folder / model).iterdir()}
        assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_model_learns_to_prefer_right_answers(tmp_path: Path) -> None:
    said = make_demo(tmp_path, "demo-preferences", "CHATS=60", "PAIRS=60")
    first, *_, last = losses(tmp_path / "runs" / "demo_preferences" / "preferred")
    assert last < first
    assert "accuracy of preferences, last" in said


DEMO = Path(__file__).parents[2] / "configs" / "demo"
MAX_ATTENTION = 0.2


def test_attention_takes_no_larger_share_than_in_large_models() -> None:
    config = load_config(DEMO / "base.toml")
    work = config.model.parts()[LAYER].work
    pairs = config.data.max_tokens / 2  # of a token of the longest row with those before it
    assert pairs * work.attention.per_pair / work.linear.per_own <= MAX_ATTENTION
