"""`dynapipe-hpc` as a user starts it, and what a run leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BIN = Path(sys.prefix) / "bin"
_VERBS = """
import json
import sys
from dynapipe_hpc.cli.main import main

for words in json.loads(sys.argv[1]):
    if code := main(words):
        sys.exit(code)
"""
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(folder: Path, n_ranks: int | None, *arguments: str) -> "subprocess.Popen[str]":
    """Starts a verb in a folder: on ranks of mpiexec, or as a process alone."""
    return _start(folder, n_ranks, str(BIN / "dynapipe-hpc"), *arguments)


def _start(folder: Path, n_ranks: int | None, *command: str) -> "subprocess.Popen[str]":
    launch = [] if n_ranks is None else [str(BIN / "mpiexec"), "-n", str(n_ranks)]
    return subprocess.Popen(
        [*launch, *command],
        cwd=folder,
        env={**os.environ, **ROOT, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(
    folder: Path, n_ranks: int | None, *arguments: str, limit_s: float = 250
) -> "subprocess.CompletedProcess[str]":
    """As `start`, to the end."""
    return _ended(start(folder, n_ranks, *arguments), limit_s)


def finish_program(
    folder: Path, n_ranks: int, program: str, *arguments: str, limit_s: float = 250
) -> "subprocess.CompletedProcess[str]":
    """Runs a program of several verbs in a folder on ranks of mpiexec, to the end."""
    return _ended(_start(folder, n_ranks, sys.executable, "-c", program, *arguments), limit_s)


def _ended(started: "subprocess.Popen[str]", limit_s: float) -> "subprocess.CompletedProcess[str]":
    with started as job:
        try:
            out, err = job.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            job.kill()
            raise
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def call(folder: Path, n_ranks: int | None, *arguments: str) -> str:
    """Output of a verb that succeeds."""
    job = finish(folder, n_ranks, *arguments)
    assert job.returncode == 0, job.stderr
    return job.stdout


def call_all(folder: Path, n_ranks: int, *verbs: Sequence[str]) -> str:
    """Output of verbs that succeed one after the other in one job, whose ranks start once."""
    job = finish_program(folder, n_ranks, _VERBS, json.dumps(verbs))
    assert job.returncode == 0, job.stderr
    return job.stdout


def columns(run: Path, *names: str) -> list[list[float]]:
    """Of the iterations of a run folder."""
    rows = [json.loads(line) for line in (run / "iterations.jsonl").read_text().splitlines()]
    return [[float(row[name]) for row in rows] for name in names]
