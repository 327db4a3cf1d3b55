"""Runs that evaluate: real ranks, whose losses are computed again from their checkpoints."""

import math
import re
import shutil
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.command_line import ONE_REPLICA, Tables, call, columns, write_job_files
from tests.jobs.real_job import RUN, real_job
from tests.oracles.plain_dropout import next_64
from tests.oracles.plain_run import PlainRun

from dynapipe_hpc.report.run_folder import evaluations_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MAX_END_S = 60
CHANGES: Tables = {
    "data": {"max_tokens": 96, "tokens_per_batch": 384},
    "model": {"hidden_size": 16, "n_heads": 2, "ffn_size": 32, "max_tokens": 96},
    "planner": {"search": {"effort": 0}},
    "training": {
        "iterations": 4,
        "learning_rate": 1e-2,
        "dtype": "float64",
        "loss_weighting": "task",
    },
    "checkpoint": {"every": 2, "keep_last": 9},
    "report": {"trace_iterations": 0},
}
ONE_STAGE = (*ONE_REPLICA, "--set", "cluster.n_stages=1")
EVALUATED = {"dataset": "corpus.h5", "tokens": 1500, "every": 2}


def evaluations(run: Path) -> list[dict[str, Any]]:
    records = evaluations_file(run).records()
    return [asdict(record) | {"perplexity": record.perplexity} for record in records]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration that evaluates, its dataset, and an undisturbed run."""
    path = tmp_path_factory.mktemp("job")
    write_job_files(path, {**CHANGES, "evaluation": EVALUATED})
    told = call(path, 4, "run", "config.toml", "-o", "run")
    assert re.findall(r"evaluation after (\d+) iterations: loss \d", told) == ["0", "2", "4"]
    return path


def test_losses_are_those_of_a_plain_loop_over_the_same_samples(folder: Path) -> None:
    plain = PlainRun(folder / "run", folder / "corpus.h5")
    for found in evaluations(folder / "run")[1:]:
        plain.resume(found["n_done"])
        sums, counts = plain.evaluate(sorted(plain.samples, key=next_64), most_tokens=1500)
        by_name = dict(zip(plain.task_names, zip(sums, counts, strict=True), strict=True))
        expected = {name: loss / n for name, (loss, n) in by_name.items() if n}
        assert {n: task["loss"] for n, task in found["tasks"].items()} == pytest.approx(expected)
        assert {n: task["tokens"] for n, task in found["tasks"].items()} == {
            name: n for name, (_, n) in by_name.items() if n
        }
        assert found["loss"] == pytest.approx(sum(expected.values()) / len(expected), rel=1e-11)
        assert found["perplexity"] == pytest.approx(math.exp(sum(sums) / sum(counts)), rel=1e-11)


def test_another_layout_evaluates_alike_and_a_resumed_run_as_before(folder: Path) -> None:
    shutil.copytree(folder / "run", folder / "resumed")
    shutil.rmtree(folder / "resumed" / "checkpoints" / "000004")
    lines = (folder / "run" / "evaluations.jsonl").read_text().splitlines(keepends=True)
    # As if it had been asked to stop while it evaluated after the second iteration.
    (folder / "resumed" / "evaluations.jsonl").write_text(lines[0])
    told = call(folder, 1, "run", "config.toml", "-o", "resumed", *ONE_STAGE)
    assert re.findall(r"evaluation after (\d+) iterations", told) == ["2", "4"]
    found, expected = (evaluations(folder / run) for run in ("resumed", "run"))
    assert [one["n_done"] for one in found] == [0, 2, 4]
    # As if it had been asked to stop in its last evaluation.
    (folder / "resumed" / "evaluations.jsonl").write_text("".join(lines[:2]))
    told = call(folder, 1, "run", "config.toml", "-o", "resumed", *ONE_STAGE)
    assert re.findall(r"evaluation after (\d+) iterations", told) == ["4"]
    assert "iteration 4" not in told
    assert evaluations(folder / "resumed")[2]["loss"] == found[2]["loss"]
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-11)
        assert one["perplexity"] == pytest.approx(other["perplexity"], rel=1e-11)


def test_the_best_state_is_kept_and_training_ends_early(folder: Path) -> None:
    # Learning rates that grow until training gets worse.
    worse = [
        *("--set", "training.learning_rate=30", "--set", "training.warmup_iterations=12"),
        *("--set", "training.iterations=12", "--set", "checkpoint.every=0"),
        *("--set", "checkpoint.keep_last=1", "--set", "checkpoint.keep_best=true"),
        *("--set", "evaluation.every=1", "--set", "evaluation.patience=2", *ONE_REPLICA),
    ]
    told = call(folder, 2, "run", "config.toml", "-o", "worse", *worse)
    losses = {e["n_done"]: e["loss"] for e in evaluations(folder / "worse") if e["n_done"]}
    best, last = min(losses, key=losses.__getitem__), max(losses)
    assert last == best + 2 < 12
    assert "training ends early: no lower loss in 2 evaluations (evaluation.patience)" in told
    kept = sorted(path.name for path in (folder / "worse" / "checkpoints").iterdir())
    assert kept == [f"{best:06d}", f"{last:06d}"]
    again = call(folder, 2, "run", "config.toml", "-o", "worse", *worse)
    assert "training has ended early" in again
    assert len(columns(folder / "worse", "loss")[0]) == last


def test_no_rank_hangs_when_an_evaluation_is_interrupted(folder: Path, tmp_path: Path) -> None:
    """Most of its time it evaluates: all samples, after every iteration."""
    endless = ("--set", "training.iterations=100000", "--set", "evaluation.every=1")
    long = ("--set", "evaluation.tokens=1000000", *ONE_REPLICA)
    with real_job(folder, 2, *RUN, *endless, *long, "-o", str(tmp_path / "run")) as job:
        job.wait_for_line("evaluation after 1 iterations")
        job.wait_for_line("iteration 1:")
        job.send(1, signal.SIGTERM)
        ended = job.wait(MAX_END_S)
    assert ended.exit_code == 75, ended.err
    assert len(ended.messages) == 1
