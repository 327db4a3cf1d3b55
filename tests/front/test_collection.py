"""All tests are collected on a machine that has none of the optional packages, or lacks one."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.front.without_packages import SKIPPED

ROOT = Path(__file__).parents[2]
OPTIONAL = ("transformers", "peft", "pyarrow", "zstandard", "shtab")
TRACKERS = ("tensorboard", "mlflow", "wandb")
NO_TESTS = 5
ALL = OPTIONAL + TRACKERS
COLLECT = ["-m", "pytest", "-p", "tests.front.without_packages", "--collect-only", "-q"]
COLLECT += ["-m", "slow or not slow"]


def collect_without(packages: Sequence[str], files: Sequence[str] = ()) -> list[str]:
    """Collects tests without packages; returns the files that are skipped as a whole."""
    collected = subprocess.run(
        [sys.executable, *COLLECT, *files],
        cwd=ROOT,
        env=os.environ | {"WITHOUT_PACKAGES": " ".join(packages)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # All of some files may need the package.
    ended = {0, NO_TESTS} if files else {0}
    assert collected.returncode in ended, collected.stdout[-2000:]
    lines = collected.stdout.splitlines()
    return [line.removeprefix(SKIPPED) for line in lines if line.startswith(SKIPPED)]


@pytest.fixture(scope="module")
def skipped() -> list[str]:
    """Files that are skipped when every optional package is missing."""
    return collect_without(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("package", ALL)
def test_all_tests_are_collected_without(package: str, skipped: list[str]) -> None:
    """Other files import no optional package, or they could not be collected without all."""
    assert skipped
    collect_without([package], skipped)


def test_no_test_is_imported_from_a_file_that_is_skipped_as_a_whole() -> None:
    skips = {
        f"tests.{path.relative_to(ROOT / 'tests').with_suffix('')}".replace("/", ".")
        for path in (ROOT / "tests").rglob("test_*.py")
        if "\nfrom tests.examples.foreign_models" in (text := path.read_text())
        or "= pytest.importorskip(" in text
    }
    assert skips
    for path in (ROOT / "tests").rglob("*.py"):
        lines = path.read_text().splitlines()
        imported = {line.split()[1] for line in lines if line.startswith("from tests.")}
        assert not imported & skips, path
