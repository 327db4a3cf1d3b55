"""`dynapipe-hpc` as a user starts it, and what a run leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import tomli_w
from tests.jobs.ready_ranks import ReadyRanks

BIN = Path(sys.prefix) / "bin"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(folder: Path, n_ranks: int | None, *arguments: str) -> "subprocess.Popen[str]":
    """Starts a verb in a folder: on ranks of mpiexec, or as a process alone."""
    return _start(folder, n_ranks, str(BIN / "dynapipe-hpc"), *arguments)


def _start(folder: Path, n_ranks: int | None, *command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*_launch(n_ranks), *command],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _launch(n_ranks: int | None) -> list[str]:
    return [] if n_ranks is None else [str(BIN / "mpiexec"), "-n", str(n_ranks)]


def _environment() -> dict[str, str]:
    # Where pytest itself has started MPI, PMIx has left settings for what it starts.
    inherited = {name: v for name, v in os.environ.items() if not name.startswith("PMIX_")}
    return {**inherited, **ROOT, "OMP_NUM_THREADS": "1"}


def finish(
    folder: Path, n_ranks: int | None, *arguments: str, limit_s: float = 250
) -> "subprocess.CompletedProcess[str]":
    return _ended(start(folder, n_ranks, *arguments), limit_s)


def finish_program(
    folder: Path, n_ranks: int, program: str, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a program in a folder on ranks of mpiexec, to the end."""
    return _ended(_start(folder, n_ranks, sys.executable, "-c", program, *arguments), 250)


def run_command(
    *words: object,
    folder: Path | None = None,
    limit_s: float = 100,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """Runs a command alone, to the end, with variables besides those of this process."""
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={**_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def run_python(
    program: str,
    *arguments: object,
    folder: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """Runs a program in a new Python, as `run_command`."""
    command = (sys.executable, "-c", program, *arguments)
    return run_command(*command, folder=folder, variables=variables)


def _ended(started: "subprocess.Popen[str]", limit_s: float) -> "subprocess.CompletedProcess[str]":
    with started as job:
        try:
            out, err = job.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            job.kill()
            raise
    return subprocess.CompletedProcess(job.args, job.returncode, out, err)


def call(folder: Path, n_ranks: int | None, *arguments: str) -> str:
    """Output of a verb that succeeds, on ranks that may be ready from a call before."""
    return complete(folder, n_ranks, *arguments).stdout


def call_all(folder: Path, n_ranks: int, *verbs: Sequence[str]) -> str:
    """Output of verbs that succeed, one after the other."""
    return "".join(call(folder, n_ranks, *words) for words in verbs)


def complete(
    folder: Path, n_ranks: int | None, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """A verb that succeeds, with its output and warnings; as `call`."""
    job = _run(folder, n_ranks, arguments)
    assert job.returncode == 0, job.stderr
    return job


def refusal(folder: Path, n_ranks: int, *arguments: str) -> str:
    """Message of a verb that refuses its input, on ranks that may be ready from a call before."""
    job = _run(folder, n_ranks, arguments)
    assert job.returncode == 2, job.stderr
    return job.stderr


def _run(
    folder: Path, n_ranks: int | None, arguments: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    if n_ranks is None:
        return finish(folder, None, *arguments)
    return _ready_ranks(n_ranks).finish(folder, arguments)


_ready: dict[int, ReadyRanks] = {}
_MAX_READY = 8  # they need memory


def _ready_ranks(n_ranks: int) -> ReadyRanks:
    """A job of so many ranks, in the environment of its start."""
    if n_ranks in _ready and not _ready[n_ranks].is_running:
        _ready.pop(n_ranks).close()
    if n_ranks not in _ready:
        while _ready and sum(_ready) + n_ranks > _MAX_READY:
            _ready.pop(next(iter(_ready))).close()
        _ready[n_ranks] = ReadyRanks(_launch(n_ranks), _environment())
    return _ready[n_ranks]


def let_ranks_go() -> None:
    """Lets ranks end that are ready; to be called when no test follows."""
    while _ready:
        _ready.popitem()[1].close()


def columns(run: Path, *names: str) -> list[list[float]]:
    """Of the iterations of a run folder."""
    rows = [json.loads(line) for line in (run / "iterations.jsonl").read_text().splitlines()]
    return [[float(row[name]) for row in rows] for name in names]


Tables = Mapping[str, Mapping[str, Any]]

CONFIG: Tables = {
    "data": {"dataset": "corpus.h5", "max_tokens": 256, "tokens_per_batch": 1024},
    "model": {
        "n_layers": 4,
        "hidden_size": 32,
        "n_heads": 4,
        "ffn_size": 64,
        "vocab_size": 257,
        "max_tokens": 256,
    },
    "cluster": {"n_replicas": 2, "n_stages": 2, "device_memory_bytes": 100_000_000},
    "planner": {"cost": {"kind": "analytic"}, "batch": {"rule": "dynamic"}},
    "training": {"iterations": 4, "learning_rate": 1e-3},
}

# Two ranks, which start in half the time of four.
ONE_REPLICA = ("--set", "cluster.n_replicas=1")


def write_config(folder: Path, changes: Tables) -> None:
    """A configuration for four ranks, config.toml, with changes by table."""
    tables = {
        name: {**CONFIG.get(name, {}), **changes.get(name, {})} for name in {**CONFIG, **changes}
    }
    (folder / "config.toml").write_text(tomli_w.dumps(tables))


def write_job_files(folder: Path, changes: Tables | None = None) -> None:
    """A configuration and its dataset, corpus.h5, which was made of corpus.jsonl."""
    for name, content in corpus_files().items():
        (folder / name).write_bytes(content)
    write_config(folder, changes or {})


@cache
def corpus_files() -> dict[str, bytes]:
    """A demo corpus and its dataset by file name, made once as a user makes them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        call(folder, None, "demo-corpus", "corpus.jsonl", "--samples", "200", "--seed", "3")
        call(folder, None, "preprocess", "corpus.jsonl", "corpus.h5")
        return {path.name: path.read_bytes() for path in folder.iterdir()}


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
