"""Facts about the machine and software of a run, for its run folder."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import dynapipe_hpc
from dynapipe_hpc.job.slurm import read_slurm_job
from dynapipe_hpc.job.world import STARTED


def machine_facts(n_ranks: int) -> dict[str, str | int]:
    """Host, processors, launcher and software versions by name, as plain values."""
    facts: dict[str, str | int] = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "ranks": n_ranks,
        "launcher": STARTED.launcher or "none",
        "cores_per_rank": STARTED.n_cores,
        "python": platform.python_version(),
        "dynapipe-hpc": dynapipe_hpc.__version__,
        "commit": _commit(),
    }
    slurm_job = read_slurm_job(os.environ)
    if slurm_job is not None:
        facts["slurm_job"] = slurm_job.name
    for package in ("torch", "numpy", "mpi4py", "h5py"):
        facts[package] = metadata.version(package)
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    """Commit of the running source tree; "unknown" outside of a repository."""
    source = Path(dynapipe_hpc.__file__)
    try:
        # A virtual environment may be inside the repository of another project.
        _git(source.parent, "ls-files", "--error-unmatch", source.name)
        return _git(source.parent, "describe", "--always", "--dirty")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    answer = subprocess.run(  # noqa: S603 - no input of users
        ["git", *arguments],  # noqa: S607 - the user's git
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return answer.stdout.strip()
