"""The main job as a user starts it: real ranks, a real dataset, and how it ends."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.jobs import command_line
from tests.jobs.command_line import ONE_REPLICA

from dynapipe_hpc.report.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ENDLESS = ("--set", "training.iterations=100000")


def start(folder: Path, n_ranks: int | None, *arguments: str) -> "subprocess.Popen[str]":
    return command_line.start(folder, n_ranks, "run", "config.toml", *arguments)


def run(folder: Path, n_ranks: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return command_line.finish(folder, n_ranks, "run", "config.toml", *arguments)


def losses(run_folder: Path) -> list[float]:
    return command_line.columns(run_folder, "loss")[0]


def test_four_ranks_train_and_leave_a_run_folder(folder: Path, tmp_path: Path) -> None:
    job = run(folder, 4, "-o", str(tmp_path / "run"))
    assert job.returncode == 0, job.stderr
    lines = [line for line in job.stdout.splitlines() if line.startswith("iteration")]
    assert len(lines) == 4
    for word in ("of 4, 0s left", "loss", "lr", "norm", "bubble", "tok", "/s"):
        assert word in lines[-1]
    n_warnings = job.stderr.count("for 4 x 2 threads (ranks x training.threads and a planner)")
    assert n_warnings == (len(os.sched_getaffinity(0)) < 8)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]
    events = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert {event["ph"] for event in events} >= {"M", "X"}
    assert "layers_per_stage" in (tmp_path / "run" / "config.toml").read_text()
    assert (tmp_path / "run" / "plans" / "0003.txt").read_text().count("rank ") == 4
    records = list(RunFolder.open(tmp_path / "run").records())
    assert len(records) == 4
    assert all(0 < record.bubble_share < 1 for record in records)
    assert all(0 < record.longest_trip_share <= 1 for record in records)
    ended = json.loads((tmp_path / "run" / "ended.json").read_text())
    assert (ended["how"], ended["exit_code"]) == ("completed", 0)
    checkpoint = tmp_path / "run" / "checkpoints" / "000004"
    assert (checkpoint / "checkpoint.json").exists()
    tokens = json.loads((checkpoint / "huggingface" / "generation_config.json").read_text())
    assert tokens == {"eos_token_id": 256, "bos_token_id": 256}


def test_a_process_started_alone_says_why_it_was_ended(folder: Path, tmp_path: Path) -> None:
    """Without checkpoints, a request to stop ends the job at once."""
    one_stage = ("--set", "cluster.n_stages=1")
    arguments = [*ONE_REPLICA, *one_stage, *ENDLESS, "-o", str(tmp_path / "run")]
    with start(folder, None, *arguments) as job:
        assert job.stdout is not None
        job.stdout.readline()
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=60)
    assert job.returncode == 130
    assert err.endswith("dynapipe-hpc: ended by SIGTERM\n")
