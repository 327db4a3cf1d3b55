"""A Python process in which packages of extras cannot be imported."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.jobs.command_line import run_python

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
    refusing = REFUSING.format(refused=set(packages))
    return run_python(refusing + program, *arguments, folder=folder)
