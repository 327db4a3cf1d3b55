"""Some of the bad inputs as a shell calls them, and under mpiexec: once for all ranks."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bad_input.changes import Change, be, be_a_folder, be_missing, cut, with_attribute
from tests.bad_input.good import IMPORT, INSPECT_DATASET, PLAN, PLAN_PROFILED, PREPROCESS, REPORT
from tests.bad_input.oracle import COUNTS, assert_clear, listing
from tests.bad_input.worker import Ended, environment

MAIN = "import sys; from dynapipe_hpc.cli.main import main; sys.exit(main())"
MPIEXEC = Path(sys.executable).with_name("mpiexec")

CASES: list[tuple[Sequence[str], str, Change]] = [
    (PREPROCESS, "in.jsonl", be("nonsense\n")),
    (PREPROCESS, "in.jsonl", be_missing),
    (PREPROCESS, "in.jsonl", be('{"\\ud800": 1}\n')),
    (PLAN, "config.toml", be("x = " + "[" * 30_000)),
    (PLAN, "config.toml", be_a_folder),
    (PLAN, "data.h5", lambda path: cut(path, 0.5)),
    (PLAN_PROFILED, "table.h5", lambda path: cut(path, 0.5)),
    (PLAN_PROFILED, "table.h5", with_attribute("state_factor", -1.0)),
    (INSPECT_DATASET, "data.h5", be("")),
    (IMPORT, "p.csv", be("a,b\n1,2\n")),
    (REPORT, "run/iterations.csv", be("")),
    (REPORT, "run/trace.json", be("[\n,7\n")),
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


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "name", "change"), CASES)
def test_a_process_ends_with_one_message(
    folder: Path, arguments: Sequence[str], name: str, change: Change
) -> None:
    change(folder / name)
    assert_refused(folder, [sys.executable, "-c", MAIN, *arguments])


RUN = ("run", "config.toml", "-o", "new")
PROFILE = ("profile", "config.toml", "-o", "new.h5")
ALL_RANKS: list[tuple[Sequence[str], str, Change]] = [
    (RUN, "config.toml", be("x =")),
    (("run", "profiled.toml", "-o", "new"), "table.h5", be("")),
    ((*PROFILE[:-1], "data.h5"), "in.jsonl", be("")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "name", "change"), ALL_RANKS)
def test_ranks_end_with_one_message_together(
    folder: Path, arguments: Sequence[str], name: str, change: Change
) -> None:
    change(folder / name)
    assert_refused(folder, [str(MPIEXEC), "-n", "2", sys.executable, "-c", MAIN, *arguments])
