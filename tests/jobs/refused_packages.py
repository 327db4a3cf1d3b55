"""A Python process in which packages of extras cannot be imported."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

REFUSING = """\
import sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in {refused}:
            raise ModuleNotFoundError(f"No module named {{package!r}}", name=package)

sys.meta_path.insert(0, Refusing())
"""


def run_without(
    packages: Iterable[str], program: str, *arguments: str, folder: Path
) -> "subprocess.CompletedProcess[str]":
    """Runs a program as if some packages were not installed."""
    return subprocess.run(
        [sys.executable, "-c", REFUSING.format(refused=set(packages)) + program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
