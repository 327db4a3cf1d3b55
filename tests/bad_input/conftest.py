"""One process runs the verbs; the inputs are made once, and copied for each case."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bad_input.good import TRAIN, write_good
from tests.bad_input.worker import COUNTS, Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    running = Worker()
    yield running
    running.close()


@pytest.fixture(scope="session")
def good_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_good(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good_inputs: Path, tmp_path: Path) -> Path:
    """Good inputs, to change."""
    return Path(shutil.copytree(good_inputs, tmp_path / "inputs"))


@pytest.fixture(scope="session")
def trained_inputs(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_good(tmp_path_factory.mktemp("trained"))
    ended = worker.call(folder, TRAIN)
    assert ended.exit_code == 0, ended.stderr
    return folder


@pytest.fixture
def trained(trained_inputs: Path, tmp_path: Path) -> Path:
    """Good inputs, and a run of one rank whose only checkpoint is its last; to change."""
    return Path(shutil.copytree(trained_inputs, tmp_path / "inputs"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not COUNTS:  # other processes ran the tests
        return
    terminalreporter.write_line(
        f"bad input: {COUNTS['clear']} of {COUNTS['tried']} clear errors; "
        f"{COUNTS['harmless']} random changes did no harm"
    )
