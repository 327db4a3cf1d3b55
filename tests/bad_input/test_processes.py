"""A few of the bad inputs as a shell calls them, and one under mpiexec: once for all ranks."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bad_input.changes import Change, be, cut
from tests.bad_input.good import PLAN_PROFILED, PREPROCESS, REPORT
from tests.bad_input.oracle import COUNTS, assert_clear, listing
from tests.bad_input.worker import Ended, environment

MAIN = "import sys; from dynapipe_hpc.cli.main import main; sys.exit(main())"
MPIEXEC = Path(sys.executable).with_name("mpiexec")

CASES: list[tuple[Sequence[str], str, Change]] = [
    (PREPROCESS, "in.jsonl", be("nonsense\n")),
    (PLAN_PROFILED, "table.h5", lambda path: cut(path, 0.5)),
    (REPORT, "run/timelines.jsonl", be("7\n")),
]


def assert_refused(folder: Path, command: Sequence[str]) -> None:
    COUNTS["tried"] += 1
    before = listing(folder)
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, timeout=90, env=environment()
    )
    stdout, stderr = ended.stdout.decode(), ended.stderr.decode()
    # What mpiexec says of ranks that end with an error comes behind.
    message, _, _ = stderr.partition("-----")
    assert_clear(Ended(ended.returncode, stdout, message, grown_bytes=0))
    assert stderr.count("dynapipe-hpc: ") == 1, stderr
    assert listing(folder) == before
    COUNTS["clear"] += 1


@pytest.mark.parametrize(("arguments", "name", "change"), CASES)
def test_a_process_ends_with_one_message(
    folder: Path, arguments: Sequence[str], name: str, change: Change
) -> None:
    change(folder / name)
    assert_refused(folder, [sys.executable, "-c", MAIN, *arguments])


@pytest.mark.slow
def test_ranks_end_with_one_message_together(folder: Path) -> None:
    be("")(folder / "table.h5")
    arguments = ("run", "profiled.toml", "-o", "new")
    assert_refused(folder, [str(MPIEXEC), "-n", "2", sys.executable, "-c", MAIN, *arguments])
