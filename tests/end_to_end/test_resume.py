"""Runs that are killed, damaged or moved to other ranks, and go on."""

import csv
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from tests.jobs import command_line
from tests.jobs.job_files import Tables, write_job_files
from torch import Tensor

from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.training.checkpoint.weights import load_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHANGES: Tables = {
    "data": {"max_tokens": 128, "tokens_per_batch": 512},
    "model": {"hidden_size": 16, "n_heads": 2, "ffn_size": 32, "vocab_size": 258},
    "cluster": {"n_replicas": 1},
    "planner": {"search": {"effort": 0}},
    "training": {"iterations": 8, "learning_rate": 1e-2},
    "checkpoint": {"every": 2},
    "report": {"trace_iterations": 6},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, its dataset, and a run that nothing disturbed."""
    path = tmp_path_factory.mktemp("job")
    write_job_files(path, CHANGES)
    call(path, 2, "undisturbed")
    return path


def start(folder: Path, n_ranks: int, output: str, *settings: str) -> "subprocess.Popen[str]":
    values = [word for setting in settings for word in ("--set", setting)]
    return command_line.start(folder, n_ranks, "run", "config.toml", "-o", output, *values)


def call(
    folder: Path, n_ranks: int, output: str, *settings: str, status: int = 0
) -> "subprocess.CompletedProcess[str]":
    with start(folder, n_ranks, output, *settings) as job:
        out, err = job.communicate(timeout=300)
    assert job.returncode == status, err
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def kill_after(folder: Path, output: str, line: str, *settings: str) -> None:
    """Kills a rank when the run has printed a line."""
    with start(folder, 2, output, *settings, "training.iterations=8") as job:
        assert job.stdout is not None
        while line not in (printed := job.stdout.readline()):
            assert printed, job.communicate()
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        job.communicate(timeout=60)
    assert job.returncode != 0


def losses(run: Path) -> list[tuple[int, str]]:
    """Iterations and losses, with all their digits."""
    with (run / "iterations.csv").open() as file:
        return [(int(row["iteration"]), row["loss"]) for row in csv.DictReader(file)]


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


def assert_equal(folder: Path, output: str) -> None:
    """Compares a run with the undisturbed one, to the bit."""
    run, undisturbed = folder / output, folder / "undisturbed"
    assert losses(run) == losses(undisturbed)
    weights = load_weights(run / "checkpoints" / "000008")
    assert same(weights, load_weights(undisturbed / "checkpoints" / "000008"))
    assert [t.iteration for t in RunFolder.open(run).timelines()] == list(range(6))
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["000006", "000008"]


@pytest.mark.parametrize("iteration", [0, 3])
def test_a_killed_run_goes_on_to_the_same_bits(folder: Path, iteration: int) -> None:
    output = f"killed after {iteration}"
    kill_after(folder, output, f"iteration {iteration}:")
    call(folder, 2, output)
    assert_equal(folder, output)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(folder: Path) -> None:
    kill_after(folder, "damaged", "iteration 7:", "checkpoint.keep_last=9")
    *_, newest = sorted((folder / "damaged" / "checkpoints").glob("0*"))
    part = newest / "part-00001.bin"
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    job = call(folder, 2, "damaged")
    assert re.search(rf"{newest.name}/part-00001.bin: is damaged.*skipped", job.stderr)
    assert f"continues after {int(newest.name) - 2} iterations" in job.stdout
    assert newest.with_name(f"{newest.name}.damaged").is_dir()
    assert losses(folder / "damaged") == losses(folder / "undisturbed")


def test_a_killed_run_goes_on_with_other_ranks(folder: Path) -> None:
    output = "two shards"
    kill_after(folder, output, "iteration 4:")
    job = call(folder, 2, output, "cluster.n_stages=1", "cluster.n_shards=2")
    assert re.search(r"continues after [24] iterations", job.stdout)
    found, expected = losses(folder / output), losses(folder / "undisturbed")
    assert [i for i, _ in found] == [i for i, _ in expected]
    assert [float(x) for _, x in found] == pytest.approx([float(x) for _, x in expected], rel=1e-4)


# One layout per family: every layout reads what another wrote in tests/training/test_checkpoint.py.
FAMILIES: Tables = {"gpt": {}, "t5": {"family": "t5", "n_layers": 2, "head_size": 8}}
LAYOUTS = {
    "gpt": ["cluster.n_stages=1", "cluster.n_replicas=4", "cluster.zero_stage=1"],
    "t5": ["cluster.n_stages=4", "cluster.n_replicas=1"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_on_another_layout_are_the_same_to_rounding(tmp_path: Path, family: str) -> None:
    """Resumes a run of 2 stages and 2 replicas in float64 in its middle, on other ranks."""
    changes: Tables = {
        **CHANGES,
        "model": {**CHANGES["model"], **FAMILIES[family]},
        "cluster": {"n_stages": 2, "n_replicas": 2},
        "training": {**CHANGES["training"], "dtype": "float64"},
        "checkpoint": {"every": 4, "keep_last": 9},
        "report": {"trace_iterations": 0},
    }
    write_job_files(tmp_path, changes)
    call(tmp_path, 4, "undisturbed")
    run, undisturbed = tmp_path / "resumed", tmp_path / "undisturbed"
    shutil.copytree(undisturbed, run)
    shutil.rmtree(run / "checkpoints" / "000008")
    job = call(tmp_path, 4, run.name, *LAYOUTS[family])
    assert "continues after 4 iterations" in job.stdout
    found, expected = (command_line.columns(r, "loss")[0] for r in (run, undisturbed))
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-11)
    weights = load_weights(run / "checkpoints" / "000008")
    for name, weight in load_weights(undisturbed / "checkpoints" / "000008").items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-9, atol=1e-12)


def test_a_finished_run_says_so(folder: Path) -> None:
    before = time.time_ns()
    job = call(folder, 2, "undisturbed")
    assert (
        "undisturbed: all 8 iterations are done; to continue, raise training.iterations: the le"
        in job.stdout
    )
    assert (folder / "undisturbed" / "iterations.csv").stat().st_mtime_ns < before


def test_another_experiment_in_the_same_folder_is_refused(folder: Path) -> None:
    settings = ["training.seed=7", "training.iterations=20"]
    job = call(folder, 2, "undisturbed", *settings, status=2)
    assert re.search("000008: was written with training.seed = 0, but now it is 7", job.stderr)
    assert "Traceback" not in job.stderr


def test_a_run_without_checkpoints_is_not_overwritten(folder: Path) -> None:
    settings = ["checkpoint.every=0", "checkpoint.last=false", "training.iterations=2"]
    call(folder, 2, "none", *settings)
    job = call(folder, 2, "none", "training.iterations=4", status=2)
    assert "none already holds a run of 2 iterations without a checkpoint" in job.stderr
