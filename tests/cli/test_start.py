"""What is wrong with a start is said before torch is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.tokenized import write_samples
from tests.jobs.command_line import finish
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.load import to_toml

PROGRAM = """\
import sys
from dynapipe_hpc.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(code, 'torch' in sys.modules)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration for one rank and its dataset."""
    write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 40)
    text = to_toml(tiny_experiment()).replace("none.h5", "x.h5")
    (tmp_path / "config.toml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("verb", ["run", "profile"])
@pytest.mark.parametrize(
    ("config", "override", "message"),
    [
        ("none.toml", "training.seed=1", "none.toml: cannot be read"),
        ("config.toml", "training.iteration=1", "did you mean 'iterations'?"),
        ("config.toml", "cluster.n_shards=2", "the configuration needs 2 ranks"),
        ("config.toml", "model.vocab_size=3", "its tokenizer has"),
    ],
)
def test_it_is_said_before_torch_is_loaded(
    folder: Path, verb: str, config: str, override: str, message: str
) -> None:
    program = [sys.executable, "-c", PROGRAM, verb, config, "--set", override, "-o", "out.h5"]
    ended = subprocess.run(
        program, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "2 False\n"
    assert message in ended.stderr
    assert not (folder / "out.h5").exists()


@pytest.mark.slow
def test_all_ranks_end_soon_with_one_message(folder: Path) -> None:
    job = finish(folder, 4, "run", "config.toml", "-o", "run", limit_s=20)
    assert job.returncode == 2
    said = [line for line in job.stderr.splitlines() if line.startswith("dynapipe-hpc:")]
    assert len(said) == 1
    assert "this job has 4" in said[0]


@pytest.mark.slow
def test_a_broken_torch_is_one_message(folder: Path) -> None:
    (folder / "torch.py").write_text("raise OSError('libtorch.so: damaged')")
    program = [sys.executable, "-c", PROGRAM, "run", "config.toml", "-o", "run"]
    ended = subprocess.run(
        program, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.startswith("dynapipe-hpc: torch cannot be loaded (OSError: libtorch.so")
    assert ended.stderr.count("\n") == 1
    assert not (folder / "run").exists()
