"""Preprocessing as a user starts it with several ranks, killed in the middle, and trained on."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BIN = Path(sys.prefix) / "bin"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LONGEST_END_S = 30
SOURCES = [f"part-{k}.jsonl" for k in range(8)]

CONFIG = """
[data]
dataset = "corpus.h5"
max_tokens = 256
tokens_per_batch = 1024

[model]
n_layers = 2
hidden_size = 32
n_heads = 4
ffn_size = 64
vocab_size = 257
max_tokens = 256

[cluster]
n_stages = 2
device_memory_bytes = 100_000_000

[planner.cost]
kind = "analytic"

[planner.batch]
rule = "dynamic"

[training]
iterations = 3
learning_rate = 1e-3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eight text files."""
    path = tmp_path_factory.mktemp("text")
    call(path, "demo-corpus", "all.jsonl", "--samples", "24000", "--max-bytes", "512")
    lines = (path / "all.jsonl").read_text().splitlines(keepends=True)
    for k, name in enumerate(SOURCES):
        (path / name).write_text("".join(lines[3000 * k : 3000 * (k + 1)]))
    return path


def call(folder: Path, *arguments: str, n_ranks: int = 0) -> str:
    """What a command prints that ends well; without ranks, it is started alone."""
    done = subprocess.run(
        command(*arguments, n_ranks=n_ranks),
        cwd=folder,
        env={**os.environ, **ROOT, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*arguments: str, n_ranks: int) -> list[str]:
    launch = [str(BIN / "mpiexec"), "-n", str(n_ranks)] if n_ranks else []
    return [*launch, str(BIN / "dynapipe-hpc"), *arguments]


def hash_of(folder: Path, dataset: str) -> str:
    return call(folder, "inspect", "--verify", dataset).split()[-1]


def test_any_number_of_ranks_makes_the_same_dataset(folder: Path) -> None:
    call(folder, "preprocess", *SOURCES, "alone.h5")
    for n_ranks in (1, 2, 4):
        output = f"ranks-{n_ranks}.h5"
        said = call(folder, "preprocess", *SOURCES, output, n_ranks=n_ranks)
        assert said.startswith(f"{output}: 8 shards, 0 of them of an earlier job; made 24,000 sam")
        assert hash_of(folder, output) == hash_of(folder, "alone.h5")


def test_a_job_whose_rank_was_killed_goes_on_when_started_again(folder: Path) -> None:
    call(folder, "preprocess", *SOURCES, "alone.h5", "--force")
    shards = folder / "killed.h5.shards"
    with subprocess.Popen(
        command("preprocess", *SOURCES, "killed.h5", "--workers", "2", n_ranks=2),
        cwd=folder,
        env={**os.environ, **ROOT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        wait_for(lambda: len(list(shards.glob("[!.]*.h5"))) >= 2)
        wait_for(lambda: len(list(shards.glob(".*.partial"))) >= 1)
        [killed, *_] = ranks_of(job.pid)
        os.kill(killed, 9)
        started_s = time.monotonic()
        job.communicate(timeout=60)
    assert time.monotonic() - started_s < LONGEST_END_S
    assert job.returncode != 0
    assert not (folder / "killed.h5").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in shards.glob("[!.]*.h5")}
    assert 2 <= len(kept) < 8

    said = call(folder, "preprocess", *SOURCES, "killed.h5", n_ranks=2)
    assert f"killed.h5: 8 shards, {len(kept)} of them of an earlier job" in said
    assert {name: (shards / name).stat().st_mtime_ns for name in kept} == kept
    assert list(shards.glob(".*")) == []
    assert hash_of(folder, "killed.h5") == hash_of(folder, "alone.h5")


def test_training_on_shards_is_training_on_one_file(folder: Path) -> None:
    (folder / "config.toml").write_text(CONFIG)
    call(folder, "preprocess", *SOURCES[:2], "whole.h5")
    call(folder, "preprocess", *SOURCES[:2], "corpus.h5", n_ranks=2)
    losses = []
    for dataset in ("whole", "corpus"):
        options = "--set", f"data.dataset={dataset}.h5", "-o", f"run-{dataset}"
        call(folder, "run", "config.toml", *options, n_ranks=2)
        lines = (folder / f"run-{dataset}" / "iterations.csv").read_text().splitlines()
        column = lines[0].split(",").index("loss")
        losses.append([line.split(",")[column] for line in lines[1:]])
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def ranks_of(launcher: int) -> list[int]:
    """The processes that mpiexec started, and not those that they started."""
    children = f"/proc/{launcher}/task/{launcher}/children"
    return [int(pid) for pid in Path(children).read_text().split()]
