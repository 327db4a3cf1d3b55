"""Preprocessing as a user starts it with several ranks, killed in the middle, and trained on."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.jobs.command_line import call, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MAX_END_S = 30
SOURCES = [f"part-{k}.jsonl" for k in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eight text files, and the dataset that one process makes of them."""
    path = tmp_path_factory.mktemp("text")
    call(path, None, "demo-corpus", "all.jsonl", "--samples", "24000", "--max-bytes", "512")
    lines = (path / "all.jsonl").read_text().splitlines(keepends=True)
    for k, name in enumerate(SOURCES):
        (path / name).write_text("".join(lines[3000 * k : 3000 * (k + 1)]))
    call(path, None, "preprocess", *SOURCES, "alone.h5")
    return path


def hash_of(folder: Path, dataset: str) -> str:
    return call(folder, None, "inspect", "--verify", dataset).split()[-1]


def test_a_job_whose_rank_was_killed_ends_without_a_dataset(folder: Path) -> None:
    with start(folder, 2, "preprocess", *SOURCES, "killed.h5", "--workers", "2") as job:
        wait_for(lambda: any(folder.glob(".killed.h5.*.partial")))
        [*_, killed] = ranks_of(job.pid)
        os.kill(killed, 9)
        started_s = time.monotonic()
        job.communicate(timeout=60)
    assert time.monotonic() - started_s < MAX_END_S
    assert job.returncode != 0
    assert not (folder / "killed.h5").exists()

    said = call(folder, 2, "preprocess", *SOURCES, "killed.h5")
    assert "killed.h5: 24,000 samples" in said
    assert hash_of(folder, "killed.h5") == hash_of(folder, "alone.h5")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def ranks_of(launcher: int) -> list[int]:
    """The processes that mpiexec started, and not those that they started."""
    children = f"/proc/{launcher}/task/{launcher}/children"
    return [int(pid) for pid in Path(children).read_text().split()]
