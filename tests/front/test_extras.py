"""Packages that planning does without, and messages where one is missing."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.jobs.refused_packages import run_without
from tests.jobs.tiny_experiment import write_tiny_experiment

from dynapipe_hpc.data.extras import EXTRA_OF

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMAND_LINE = "from dynapipe_hpc.cli.main import main; sys.exit(main(sys.argv[1:]))"
PLAN = """\
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
    """Names of what pip installs for an extra of this project."""
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
    """A folder with a dataset, its configuration and a file of lengths."""
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
    ended = run_without(EXTRA_OF, PLAN, folder=tmp_path)
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
    sizes = ("model.n_layers=4", "data.tokens_per_batch=2048", "data.max_tokens=256")
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
    program = PLAN.partition("plans =")[0] + (
        "from dynapipe_hpc import read_cost_table\n"
        "read_cost_table('x.h5', shape, Cluster(device_memory_bytes='1GB'))"
    )
    ended = run_without({"h5py"}, program, folder=folder)
    assert ended.stderr.splitlines()[-1] == (
        "dynapipe_hpc.data.errors.InputError: h5py is not installed; install the extra [hdf5]: "
        "pip install 'dynapipe-hpc[hdf5]'; [train] brings all that training needs"
    )
