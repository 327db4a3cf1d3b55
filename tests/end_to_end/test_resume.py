"""Runs that are killed, damaged or moved to other ranks, and go on."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from tests.examples.checkpoint_weights import load_weights
from tests.jobs import command_line
from tests.jobs.command_line import Tables, write_job_files
from tests.jobs.real_job import RUN, real_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHANGES: Tables = {
    "data": {"max_tokens": 128, "tokens_per_batch": 512},
    "model": {"hidden_size": 16, "n_heads": 2, "ffn_size": 32, "vocab_size": 258},
    "cluster": {"n_replicas": 1},
    "planner": {"search": {"effort": 0}},
    "training": {"iterations": 8, "learning_rate": 1e-2},
    "checkpoint": {"every": 2},
    "report": {"trace_iterations": 6},
}


def call(folder: Path, output: str, *settings: str) -> "subprocess.CompletedProcess[str]":
    return command_line.complete(folder, 2, *words_of(output, *settings))


def words_of(output: str, *settings: str) -> list[str]:
    values = [word for setting in settings for word in ("--set", setting)]
    return ["run", "config.toml", "-o", output, *values]


def losses(run: Path) -> list[tuple[int, str]]:
    """Iterations and losses, with all their digits."""
    rows = [json.loads(line) for line in (run / "iterations.jsonl").read_text().splitlines()]
    return [(row["iteration"], repr(row["loss"])) for row in rows]


# One layout per family: every layout reads what another wrote in tests/training/test_checkpoint.py.
FAMILIES: Tables = {
    "gpt": {},
    "t5": {"family": "t5", "n_layers": 2, "head_size": 8, "dropout": 0.1},
}
LAYOUTS = {
    "gpt": ["cluster.n_stages=1", "cluster.n_shards=2"],
    "t5": ["cluster.n_stages=1", "cluster.n_replicas=2", "cluster.zero_stage=1"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_on_another_layout_are_the_same_to_rounding(tmp_path: Path, family: str) -> None:
    """Resumes a run of two stages in float64 in its middle, with one stage."""
    changes: Tables = {
        **CHANGES,
        "model": {**CHANGES["model"], **FAMILIES[family]},
        "training": {**CHANGES["training"], "dtype": "float64"},
        "checkpoint": {"every": 4, "keep_last": 9},
        "report": {"trace_iterations": 0},
    }
    write_job_files(tmp_path, changes)
    call(tmp_path, "undisturbed")
    run, undisturbed = tmp_path / "resumed", tmp_path / "undisturbed"
    shutil.copytree(undisturbed, run)
    shutil.rmtree(run / "checkpoints" / "000008")
    job = call(tmp_path, run.name, *LAYOUTS[family])
    assert "continues after 4 iterations" in job.stdout
    found, expected = (command_line.columns(r, "loss")[0] for r in (run, undisturbed))
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-11)
    weights = load_weights(run / "checkpoints" / "000008")
    for name, weight in load_weights(undisturbed / "checkpoints" / "000008").items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-12)


def test_a_stopped_run_on_a_mixture_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """One of the datasets reaches its limit of epochs before the run ends."""
    training = {**CHANGES["training"], "schedule": "constant"}
    write_job_files(tmp_path, {**CHANGES, "training": training, "checkpoint": {}})
    lines = (tmp_path / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(lines[:9]))
    command_line.call(tmp_path, None, "preprocess", "few.jsonl", "few.h5")
    mixture = 'data.mixture=[{dataset="corpus.h5"}, {dataset="few.h5", epochs=2}]'
    mixed = ("--set", mixture, "--set", "data.mixture_cap=9", "--set")
    endless = (*mixed, "training.iterations=100000")
    with real_job(tmp_path, 2, *RUN, "-o", "stopped", *endless) as job:
        job.wait_for_line("iteration 3:")
        job.send(1, signal.SIGTERM)
        assert job.wait(60).exit_code == 75
    n_done = len(losses(tmp_path / "stopped"))
    longer = (*mixed, f"training.iterations={n_done + 4}")
    told = command_line.call(tmp_path, 2, *RUN[1:], "-o", "stopped", *longer)
    assert f"continues after {n_done} iterations" in told
    assert re.search(r"few: .* 2\.00 of at most 2 epochs", told)
    command_line.call(tmp_path, 2, *RUN[1:], "-o", "undisturbed", *longer)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "undisturbed")
    assert len(losses(tmp_path / "stopped")) == n_done + 4
