import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.examples.tokenized import write_samples
from tests.jobs.command_line import finish
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.load import to_toml

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
    """A folder with a configuration for one rank and its dataset."""
    write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 40)
    text = to_toml(tiny_experiment()).replace("none.h5", "x.h5")
    (tmp_path / "config.toml").write_text(text)
    return tmp_path


def run_program(folder: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, bool, str]]:
    """Exit code, whether torch is loaded, and standard error of commands in one process."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
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
