"""An environment with this checkout and what it needs, from local wheels; no network."""

import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu.finding import READY, folder, lacks, note

ROOT = Path(__file__).parents[3]
WHEELS = ROOT / "build" / "gpu-wheels"
MAX_BYTES = 60_000_000
WITHOUT_NETWORK = ("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check")


def main() -> None:
    wheels = sorted(WHEELS.glob("*.whl"))
    if not wheels:
        lacks(f"wheels in {WHEELS.relative_to(ROOT)}: make gpu-wheels")
    n_bytes = sum(wheel.stat().st_size for wheel in wheels)
    note("wheels in bytes", n_bytes, f"at most {MAX_BYTES:,}", n_bytes <= MAX_BYTES)
    env = folder() / "env"
    shutil.rmtree(env, ignore_errors=True)
    install(env, wheels)
    (env / READY).touch()  # without it, steps take what is installed already


def install(env: Path, wheels: list[Path]) -> None:
    """Makes the environment; reports how long each part takes."""
    python = env / "bin" / "python"
    with timed("environment and wheels in s"):
        run(sys.executable, "-m", "venv", "--without-pip", env)
        pip(python, *wheels)
        # torch, numpy and h5py come from the interpreter that runs this. A virtual environment
        # cannot be based on another, so it is named in a path file: after the wheels, as pip would
        # leave out those that the other has, and CMake looks for pybind11 in this one.
        (packages,) = env.glob("lib/python*/site-packages")
        (packages / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    with timed("build in s"):
        build = f"build-dir={folder() / 'cmake'}"
        pip(python, "--no-build-isolation", "--config-settings", build, "--editable", ROOT)
    run(python, "-c", "import dynapipe_hpc._kernels, h5py, mpi4py.MPI, torch")
    note("kernels, MPI and torch load", "yes", "yes", True)
    run(env / "bin" / "mpiexec", "-n", "2", "true")
    note("mpiexec -n 2 true", "works", "works", True)


def pip(python: Path, *words: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", *WITHOUT_NETWORK, *words)


def run(*command: str | Path) -> None:
    parallel = {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    subprocess.run(list(map(str, command)), env=os.environ | parallel, check=True)


@contextmanager
def timed(name: str) -> Iterator[None]:
    started_s = time.monotonic()
    yield
    note(name, time.monotonic() - started_s)


if __name__ == "__main__":
    main()
