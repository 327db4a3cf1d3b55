"""The main job as a user starts it: real ranks, a real dataset, and everything that goes wrong."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import h5py
import pytest
from tests.jobs import command_line
from tests.jobs.job_files import write_job_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LONGEST_END_S = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration and its dataset."""
    path = tmp_path_factory.mktemp("job")
    write_job_files(path)
    return path


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
    for word in ("loss", "real tokens/s", "padding efficiency", "predicted", "plans ahead"):
        assert word in lines[-1]
    n_warnings = job.stderr.count("4 x 1 threads (ranks x training.threads) share")
    assert n_warnings == (len(os.sched_getaffinity(0)) < 4)
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]
    events = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert {event["ph"] for event in events} >= {"M", "X"}
    assert "layers_per_stage" in (tmp_path / "run" / "config.toml").read_text()
    assert (tmp_path / "run" / "plans" / "0003.txt").read_text().count("rank ") == 4
    assert (tmp_path / "run" / "checkpoints" / "000004" / "checkpoint.json").exists()


def test_shards_train_as_whole_layers_do(folder: Path, tmp_path: Path) -> None:
    settings = ["--set", "training.dtype=float64", "--set", "model.vocab_size=258"]
    found = []
    for n_stages, n_shards in ((2, 2), (1, 1)):
        sizes = [f"cluster.n_stages={n_stages}", f"cluster.n_shards={n_shards}"]
        sizes.append("cluster.n_replicas=1")
        output = tmp_path / f"{n_shards} shards"
        arguments = [word for size in sizes for word in ("--set", size)]
        job = run(folder, n_stages * n_shards, *settings, *arguments, "-o", str(output))
        assert job.returncode == 0, job.stderr
        found.append(losses(output))
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    plans = (tmp_path / "2 shards" / "plans" / "0003.txt").read_text()
    assert plans.count("rank ") == 2  # of one shard, for all


def test_the_split_into_stages_and_micro_batches_does_not_change_the_losses(
    folder: Path, tmp_path: Path
) -> None:
    exact = ["--set", "training.dtype=float64"]
    one = ["--set", "cluster.n_stages=1", "--set", "cluster.n_replicas=1"]
    naive = [*one, "--set", "planner.batch={rule='naive_padding', rows_per_microbatch=100}"]
    unsplit = run(folder, 1, *exact, *naive, "-o", str(tmp_path / "unsplit"))
    assert unsplit.returncode == 0, unsplit.stderr
    split = run(folder, 4, *exact, "-o", str(tmp_path / "split"))
    assert split.returncode == 0, split.stderr
    assert losses(tmp_path / "split") == pytest.approx(losses(tmp_path / "unsplit"), rel=1e-9)


@pytest.mark.parametrize(
    ("n_ranks", "arguments", "message"),
    [
        (2, [], "needs 4 ranks .* but this job has 2; start it with mpiexec -n 4"),
        (4, ["--set", "model.vocab_size=100"], "model.vocab_size is 100"),
        (1, ["--set", "cluster.n_shards=3"], r"n_shards \(3\) does not divide model.n_heads"),
    ],
)
def test_wrong_input_ends_all_ranks_with_one_message(
    folder: Path, tmp_path: Path, n_ranks: int, arguments: list[str], message: str
) -> None:
    job = run(folder, n_ranks, *arguments, "-o", str(tmp_path / "run"))
    told = [line for line in job.stderr.splitlines() if line.startswith("dynapipe-hpc:")]
    assert job.returncode == 2
    assert len(told) == 1
    assert re.search(message, told[0])
    assert "Traceback" not in job.stderr


def test_a_sample_that_cannot_fit_is_named(folder: Path, tmp_path: Path) -> None:
    job = run(
        folder, 4, "--set", "cluster.device_memory_bytes=1_000_000", "-o", str(tmp_path / "run")
    )
    assert job.returncode == 1
    assert "cluster.device_memory_bytes is 1,000,000; raise it" in job.stderr
    assert "Traceback" not in job.stderr


def test_an_exception_on_one_rank_ends_all_of_them(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "corpus.h5"
    copy.write_bytes((folder / "corpus.h5").read_bytes())
    with h5py.File(copy, "r+") as file:
        file["inputs/tokens"][::100] = 60_000  # no token has this number
    # The comparison with the checksums, beside training, might be first to end the run.
    changed = ("--set", f"data.dataset={copy}", "--set", "data.verify=false")
    with start(folder, 4, *changed, "-o", str(tmp_path / "run")) as job:
        assert job.stderr is not None
        first_line = next(line for line in job.stderr if "warning: " not in line)
        failed = time.monotonic()
        err = first_line + job.stderr.read()  # what `readline` has taken in, communicate would lose
    assert time.monotonic() - failed < LONGEST_END_S
    assert job.returncode == 1
    assert re.search(r"rank \d on .* ends the job: iteration 0, rank \d, instruction", err)
    assert re.search(r"sample \d+ holds token 60000, but 'vocab_size' is \d+; make it again", err)


@pytest.mark.parametrize(("n_ranks", "number"), [(4, signal.SIGINT), (1, signal.SIGTERM)])
def test_an_interruption_ends_all_ranks_soon(
    folder: Path, tmp_path: Path, number: signal.Signals, n_ranks: int
) -> None:
    sizes = ["--set", f"cluster.n_stages={n_ranks}", "--set", "cluster.n_replicas=1"]
    arguments = [*sizes, "--set", "training.iterations=100000", "-o", str(tmp_path / "run")]
    with start(folder, n_ranks, *arguments) as job:
        assert job.stdout is not None
        job.stdout.readline()
        started = time.monotonic()
        job.send_signal(number)
        job.communicate(timeout=60)
    assert time.monotonic() - started < LONGEST_END_S
    assert job.returncode != 0


def test_a_process_started_alone_says_why_it_was_ended(folder: Path, tmp_path: Path) -> None:
    sizes = ["--set", "cluster.n_stages=1", "--set", "cluster.n_replicas=1"]
    arguments = [*sizes, "--set", "training.iterations=100000", "-o", str(tmp_path / "run")]
    with start(folder, None, *arguments) as job:
        assert job.stdout is not None
        job.stdout.readline()
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=60)
    assert job.returncode == 130
    assert err.endswith("dynapipe-hpc: ended by SIGINT\n")
