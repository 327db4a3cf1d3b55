"""Help, hints, progress and the start of the command line."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.jobs.command_line import finish, run_command, run_python
from tests.jobs.tiny_experiment import write_tiny_experiment

from dynapipe_hpc import __version__
from dynapipe_hpc.cli import progress
from dynapipe_hpc.cli.main import make_parser
from dynapipe_hpc.cli.progress import share_progress, time_left

ROOT = Path(__file__).parents[2]


def parsers() -> dict[str, argparse.ArgumentParser]:
    (verbs,) = [a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(verbs.choices)


def test_descriptions_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for parser in [make_parser(), *parsers().values()]:
        assert max(len(line) for line in parser.format_help().splitlines()) < 80


def test_the_package_is_the_command() -> None:
    command = (sys.executable, "-m", "dynapipe_hpc")
    found = run_command(*command, "--version")
    assert found.stdout == f"dynapipe-hpc {__version__}\n"
    wrong = run_command(*command, "nonsense")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("usage: dynapipe-hpc ")


def test_the_time_left_is_not_told_before_a_share_is_done() -> None:
    """It began with 158,262 s."""
    assert time_left(0.0, 10.0) == ""
    assert time_left(10 / 158_272, 10.0) == ""
    assert time_left(0.25, 10.0) == "30 s left"


def test_lines_of_a_log_tell_the_share_and_then_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with share_progress("profile", shown=True) as show:
        show(0.001)
        show(0.5)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "profile: 0 % done"
    assert second == "profile: 50 % done, 0 s left"


def test_no_share_is_told_of_what_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed text was at 700 %, and a pipe at millions."""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with share_progress("preprocess") as show:
        show(None, "1,234 tokens")
    assert capsys.readouterr().err == "preprocess: 1,234 tokens\n"


# Runs commands that end before torch is loaded, and says so after each.
PROGRAM = """\
import contextlib, io, json, sys
from dynapipe_hpc.cli.main import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, 'torch' in sys.modules, said.getvalue()]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_experiment(tmp_path)


def run_program(folder: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, bool, str]]:
    """Exit code, whether torch is loaded, and standard error of commands in one process."""
    ended = run_python(PROGRAM, json.dumps(commands), folder=folder)
    return [tuple(json.loads(line)) for line in ended.stdout.splitlines()]


WRONG = [
    ("none.toml", "training.seed=1", "none.toml: cannot be read"),
    ("config.toml", "training.iteration=1", "did you mean 'iterations'?"),
    ("config.toml", "cluster.n_shards=2", "the configuration needs 2 ranks"),
    ("config.toml", "model.vocab_size=3", "its tokenizer has"),
]


def test_what_is_wrong_is_said_before_torch_is_loaded(folder: Path) -> None:
    commands = [
        (verb, config, "--set", override, "-o", "out.h5")
        for verb in ("run", "profile")
        for config, override, _ in WRONG
    ]
    ended = run_program(folder, commands)
    assert [(code, has_torch) for code, has_torch, _ in ended] == [(2, False)] * len(commands)
    for (_, _, said), (_, _, message) in zip(ended, WRONG * 2, strict=True):
        assert message in said
    assert not (folder / "out.h5").exists()


@pytest.mark.slow
def test_all_ranks_end_soon_with_one_message(folder: Path) -> None:
    job = finish(folder, 4, "run", "config.toml", "-o", "run", limit_s=20)
    assert job.returncode == 2
    said = [line for line in job.stderr.splitlines() if line.startswith("dynapipe-hpc:")]
    assert len(said) == 1
    assert "this job has 4" in said[0]
