"""The built wheel: what it holds, and a planning install in an environment of its own."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dynapipe_hpc.job.starter_files import FOLDERS

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
BUILD_FOLDER = "--config-settings=build-dir=build/module"  # what setup has compiled is there
MAX_BYTES = 100e6
PLAN = """\
import sys
import numpy as np
from dynapipe_hpc import AnalyticConfig, Cluster, GptShape, plan_iteration

random = np.random.default_rng(1)
lengths = np.clip(random.lognormal(np.log(107), 0.9, 400), 2, 2048).astype(int)
shape = GptShape(
    n_layers=24, hidden_size=2048, n_heads=16, ffn_size=8192, vocab_size=50304, max_tokens=2048
)
cluster = Cluster(n_replicas=2, n_stages=4, device_memory_bytes="40GB")
rates = AnalyticConfig(flops_per_ms=1e11, memory_bytes_per_ms=1e9)
plans = plan_iteration(lengths, shape, cluster, rates)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "mpi4py", "h5py", "matplotlib"}, loaded
print(len(plans), sum(len(m.sample_ids) for p in plans if p.stage == 0 for m in p.microbatches))
"""


def n_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def run_page(page: str, python: Path, folder: Path, environment: dict[str, str]) -> None:
    """Runs what a page shows to readers who have installed nothing but the package.

    These are its first block of commands, without the installation and without MPI, and its first
    block of Python.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = dict(reversed(re.findall(r"^```(console|python)\n(.*?)^```$", text, re.M | re.S)))
    commands = [line[2:] for line in blocks.get("console", "").splitlines() if line[:2] == "$ "]
    (folder / "configs").symlink_to(ROOT / "configs")
    found = f"{python.parent}:{environment['PATH']}"
    for command in commands:
        if not command.startswith(("python3 -m venv", "pip install", "mpiexec")):
            run = ["bash", "-c", command.partition("#")[0]]
            subprocess.run(run, cwd=folder, env=environment | {"PATH": found}, check=True)
    if "python" in blocks:
        subprocess.run([python, "-c", blocks["python"]], cwd=folder, env=environment, check=True)
    (folder / "configs").unlink()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", BUILD_FOLDER, "--wheel-dir"]
    subprocess.run([*PIP, *build, str(folder), str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
@pytest.mark.timeout(600)  # compiles the kernels
def test_a_wheel_holds_the_kernels_the_scripts_and_the_configurations(wheel: Path) -> None:
    files = {each.filename: each for each in zipfile.ZipFile(wheel).infolist()}
    assert [name for name in files if re.fullmatch(r"dynapipe_hpc/_kernels\..*\.so", name)]
    shared = {
        str(path.relative_to(ROOT))
        for each in FOLDERS
        for path in (ROOT / each).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    share = "dynapipe_hpc/share/"
    assert {name.removeprefix(share) for name in files if name.startswith(share)} == shared
    assert (files[f"{share}slurm/staged.sh"].external_attr >> 16) & 0o111


@pytest.mark.slow
@pytest.mark.timeout(600)  # compiles the kernels
def test_planning_needs_less_than_100_mb(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    install = ["--python", str(python), "install", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([*PIP, *install], check=True)
    assert n_bytes(environment) < MAX_BYTES
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    planned = subprocess.run(
        [python, "-c", PLAN], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout == "8 400\n"
    for page in ("README.md", "docs/studies.md", "docs/library.md"):
        run_page(page, python, tmp_path, alone)
    copy = [str(python), "-m", "dynapipe_hpc", "slurm-scripts", "job"]
    subprocess.run(copy, cwd=tmp_path, env=alone, capture_output=True, check=True)
    assert {path.name for path in (tmp_path / "job").iterdir()} == {
        "slurm",
        "configs",
        "benchmarks",
    }
    assert os.access(tmp_path / "job" / "slurm" / "staged.sh", os.X_OK)
