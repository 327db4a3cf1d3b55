"""The help of every verb."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dynapipe_hpc import __version__
from dynapipe_hpc.cli.main import make_parser

ROOT = Path(__file__).parents[2]


def parsers() -> dict[str, argparse.ArgumentParser]:
    (verbs,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(verbs.choices)


@pytest.mark.parametrize("verb", parsers())
def test_help_ends_with_examples_that_work(verb: str) -> None:
    _, heading, text = parsers()[verb].format_help().partition("\nexamples:\n")
    lines = text.splitlines()
    assert heading
    assert 1 <= len(lines) <= 3
    for line in lines:
        command = re.fullmatch(r"  (?:srun |mpiexec -n \d+ )?dynapipe-hpc (.*)", line)
        assert command, line
        words = shlex.split(command[1])
        assert words[0] == verb
        assert make_parser().parse_args(words).run
        assert all((ROOT / word).is_file() for word in words if word.startswith("configs/"))


def test_descriptions_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for parser in [make_parser(), *parsers().values()]:
        before, _, _ = parser.format_help().partition("\nexamples:\n")
        assert max(len(line) for line in before.splitlines()) < 80


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "dynapipe_hpc"]
    found = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert found.stdout == f"dynapipe-hpc {__version__}\n"
    wrong = subprocess.run([*command, "nonsense"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("usage: dynapipe-hpc ")
