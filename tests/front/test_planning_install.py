"""The built wheel: what it holds, and a planning install in an environment of its own."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.jobs.command_line import run_without
from tests.jobs.tiny_experiment import write_tiny_experiment

from dynapipe_hpc.data.extras import EXTRA_OF
from dynapipe_hpc.job.starter_files import FOLDERS

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
BUILD_FOLDER = "--config-settings=build-dir=build/module"  # what setup has compiled is there
MAX_BYTES = 100e6


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
        [python, "-c", f"import sys\n{SMALL_PLAN}"],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("rank 0 |")
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMAND_LINE = "from dynapipe_hpc.cli.main import main; sys.exit(main(sys.argv[1:]))"
SMALL_PLAN = """\
from dynapipe_hpc import Cluster, GptShape, format_plans, plan_iteration
shape = GptShape(
    n_layers=4, hidden_size=64, n_heads=4, ffn_size=256, vocab_size=1000, max_tokens=512
)
plans = plan_iteration([12, 500, 37, 90], shape, Cluster(n_stages=2, device_memory_bytes="1GB"))
print(format_plans(plans))
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "mpi4py", "h5py", "matplotlib"}, loaded
"""


def brought_by(extra: str) -> set[str]:
    brought = set()
    for each in PROJECT["optional-dependencies"][extra]:
        name, _, rest = each.partition("[")
        if name == "dynapipe-hpc":
            brought |= {b for other in rest.rstrip("]").split(",") for b in brought_by(other)}
        else:
            brought.add(each.partition(">")[0])
    return brought


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lengths.json").write_text(json.dumps({"batches": [[5, 32, 9, 17]]}))
    return write_tiny_experiment(tmp_path)


def test_planning_depends_on_no_package_of_an_extra() -> None:
    assert {each.partition(">")[0] for each in PROJECT["dependencies"]}.isdisjoint(EXTRA_OF)


@pytest.mark.parametrize("package", EXTRA_OF)
def test_the_extra_that_a_message_names_brings_the_package(package: str) -> None:
    assert package in brought_by(EXTRA_OF[package])


@pytest.mark.parametrize("extra", ["train", "local"])
def test_who_trains_needs_one_extra(extra: str) -> None:
    others = {"pyarrow", "transformers", "zstandard"}
    assert brought_by(extra) >= set(EXTRA_OF) - others


def test_lengths_are_planned_in_python_without_extras(tmp_path: Path) -> None:
    ended = run_without(EXTRA_OF, SMALL_PLAN, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [line[:8] for line in ended.stdout.splitlines()] == ["rank 0 |", "rank 1 |"]


def test_lengths_are_planned_on_the_command_line_without_extras(folder: Path) -> None:
    arguments = ["plan", "config.toml", "--lengths", "lengths.json", "--json", "plans.json"]
    ended = run_without(EXTRA_OF, COMMAND_LINE, *arguments, folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("batch 0: 4 samples, predicted")


@pytest.mark.parametrize("verb", ["plan", "simulate", "grid-search", "tune"])
def test_lengths_that_are_drawn_are_studied_without_extras(verb: str, tmp_path: Path) -> None:
    config = ROOT / "configs" / "studies" / "packing.toml"
    # Small enough for a test; what is loaded is the same.
    cluster = ("cluster.n_stages=2", "cluster.n_replicas=1", "cluster.n_shards=1")
    tokens = ("data.tokens_per_batch=2048", "data.max_tokens=256")
    sizes = ("model.n_layers=4", *tokens, *cluster)
    values = ("training.iterations=1", "planner.search.effort=0", *sizes)
    smaller = [word for value in values for word in ("--set", value)]
    others = {
        "plan": ("--explain",),
        "simulate": ("-o", "study"),
        "grid-search": ("--batches", "1", "-o", "grid.csv"),
        "tune": ("--batches", "1"),
    }
    arguments = [verb, str(config), *smaller, *others[verb]]
    ended = run_without(EXTRA_OF, COMMAND_LINE, *arguments, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("h5py", ["plan", "config.toml"]),
        ("tokenizers", ["preprocess", "x.jsonl", "y.h5", "--tokenizer", "tokenizer.json"]),
        ("jinja2", ["report", "runs/x"]),
        ("mpi4py", ["run", "config.toml", "-o", "run"]),
        ("torch", ["run", "config.toml", "-o", "run"]),
    ],
)
def test_a_verb_without_its_package_ends_with_one_line(
    folder: Path, missing: str, arguments: list[str]
) -> None:
    ended = run_without({missing}, COMMAND_LINE, *arguments, folder=folder)
    command = f"pip install 'dynapipe-hpc[{EXTRA_OF[missing]}]'"
    assert ended.stderr.startswith(f"dynapipe-hpc: {missing} is not installed; install the extra")
    assert command in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.returncode == 2


def test_a_measured_table_without_hdf5_names_the_extra(folder: Path) -> None:
    program = SMALL_PLAN.partition("plans =")[0] + (
        "from dynapipe_hpc import read_cost_table\n"
        "read_cost_table('x.h5', shape, Cluster(device_memory_bytes='1GB'))"
    )
    ended = run_without({"h5py"}, program, folder=folder)
    assert ended.stderr.splitlines()[-1] == (
        "dynapipe_hpc.data.errors.InputError: h5py is not installed; install the extra [hdf5]: "
        "pip install 'dynapipe-hpc[hdf5]'; [train] brings all that training needs"
    )
