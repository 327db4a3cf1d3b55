"""The configurations of `make demo`, on less data and with a smaller model."""

import re
from pathlib import Path

import pytest
from tests.jobs import command_line
from tests.jobs.job_files import corpus_files

from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.experiment.load import load_config

DEMO = Path(__file__).parents[2] / "configs" / "demo"
RULES = ("naive_padding", "dense_packing", "token_budget", "packed_balanced", "dynamic")
SMALL = (
    "data.dataset=corpus.h5",
    "data.max_tokens=256",
    "data.tokens_per_batch=1024",
    "model.hidden_size=32",
    "model.n_heads=2",
    "model.ffn_size=64",
    "planner.cost={kind='analytic'}",
    "training.iterations=2",
    "training.warmup_iterations=1",
)
MAX_ATTENTION = 0.2


def run(folder: Path, rule: str) -> str:
    """Trains two iterations on two ranks; returns what it printed."""
    sets = [word for each in SMALL for word in ("--set", each)]
    job = command_line.finish(
        folder, 2, "run", str(DEMO / f"{rule}.toml"), *sets, "-o", str(folder / rule)
    )
    assert job.returncode == 0, job.stderr
    return job.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_run_of_the_demo_trains_and_the_report_says_what_was_gained(tmp_path: Path) -> None:
    for name, content in corpus_files().items():
        (tmp_path / name).write_bytes(content)
    for rule in RULES:
        assert run(tmp_path, rule).count("iteration ") >= 2
    report = command_line.finish(tmp_path, None, "report", *RULES)
    assert report.returncode == 0, report.stderr
    gained = r"^dynamic processes \d+\.\d\dx the real tokens per second of \w+, the best of the"
    assert re.search(gained, report.stdout, re.MULTILINE)
    assert "time of ranks, real work" in report.stdout
    assert "planner.batch.rule: naive_padding in naive_padding; " in report.stdout


def test_attention_takes_no_larger_share_than_in_large_models() -> None:
    config = load_config(DEMO / "base.toml")
    work = config.model.parts()[LAYER].work
    pairs = config.data.max_tokens / 2  # of a token of the longest row with those before it
    assert pairs * work.attention.per_pair / work.linear.per_own <= MAX_ATTENTION
