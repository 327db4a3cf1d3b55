"""A planning install: the built wheel in an environment of its own, without extras."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
BUILD_FOLDER = "--config-settings=build-dir=build/module"  # what setup has compiled is there
MOST_BYTES = 100e6
PLAN = """\
import sys
import numpy as np
from dynapipe_hpc import AnalyticConfig, Cluster, ModelShape, plan_iteration

random = np.random.default_rng(1)
lengths = np.clip(random.lognormal(np.log(107), 0.9, 400), 2, 2048).astype(int)
shape = ModelShape(
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


@pytest.mark.slow
@pytest.mark.timeout(600)  # compiles the kernels
def test_planning_needs_less_than_100_mb(tmp_path: Path) -> None:
    build = ["wheel", "--no-deps", "--no-build-isolation", BUILD_FOLDER, "--wheel-dir"]
    subprocess.run([*PIP, *build, str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    install = ["--python", str(python), "install", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([*PIP, *install], check=True)
    assert n_bytes(environment) < MOST_BYTES
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    planned = subprocess.run(
        [python, "-c", PLAN], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout == "8 400\n"
