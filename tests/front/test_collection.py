"""All tests are collected on a machine that has none of the optional packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONAL = (
    "transformers",
    "peft",
    "pyarrow",
    "zstandard",
    "tensorboard",
    "mlflow",
    "wandb",
)
COLLECT = ["-m", "pytest", "-p", "tests.front.without_packages", "--collect-only", "-q"]
COLLECT += ["-m", "slow or not slow"]


@pytest.mark.slow
def test_all_tests_are_collected_without_optional_packages() -> None:
    collected = subprocess.run(
        [sys.executable, *COLLECT],
        cwd=ROOT,
        env=os.environ | {"WITHOUT_PACKAGES": " ".join(OPTIONAL)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout[-2000:]


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
