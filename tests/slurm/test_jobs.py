import json
import re
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.jobs.command_line import call, run_command
from tests.slurm.cluster import ENDED, SCRIPTS, BatchJob, Cluster, submit

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.planner.cost.table.profile_file import read_table

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

STEPS = ("preprocess", "profile", "run", "report")
SIZE = "--nodes=4 --ntasks-per-node=1 --cpus-per-task=2 --time=10"


def submit_chain(
    cluster: Cluster, folder: Path, environment: dict[str, str], text: str
) -> dict[str, BatchJob]:
    """The jobs of a chain that has ended, by step, as the chain's numbers tell them."""
    of_steps = {"LAUNCHER": "srun --mpi=pmix", "SIZE": SIZE, "TEXT_SIZE": "--ntasks=1 --time=10"}
    words = (SCRIPTS / "chain.sh", "chain.toml", "new.h5", "costs.h5", "run", text)
    variables = {**environment, **cluster.environment, **of_steps}
    told = run_command(*words, folder=folder, variables=variables).stdout
    numbers = {step: int(number) for step, number in re.findall(r"(\w+) (\d+)", told)}
    assert tuple(numbers) == STEPS
    jobs = {
        step: BatchJob(cluster, number, folder / f"dynapipe-{step}-{number}.out")
        for step, number in numbers.items()
    }
    for job in jobs.values():
        job.wait_for(lambda job: job.state in ENDED)
    return jobs


def time_of(job: BatchJob, event: str) -> datetime:
    """Time at which a job began ("Start") or ended ("End"), in whole seconds."""
    return datetime.fromisoformat(job.fact(f"{event}Time"))


@pytest.fixture
def chain(folder: Path) -> Path:
    costs = '[planner.cost]\nkind = "profiled"\npath = "named by the chain"\n'
    (folder / "chain.toml").write_text(f'extends = "config.toml"\n{costs}')
    return folder


def test_text_becomes_a_report_one_step_after_the_other(
    cluster: Cluster, chain: Path, open_mpi: dict[str, str]
) -> None:
    jobs = submit_chain(cluster, chain, open_mpi, "corpus.jsonl")
    logs = "\n".join(job.text() for job in jobs.values())
    assert {step: job.state for step, job in jobs.items()} == dict.fromkeys(STEPS, "COMPLETED"), (
        logs
    )
    for before, after in pairwise(jobs.values()):
        assert time_of(before, "End") <= time_of(after, "Start")
    assert (chain / "new.h5").exists()
    assert read_table(chain / "costs.h5").provenance["ranks"] == "4"
    rows = (chain / "run" / "iterations.jsonl").read_text().splitlines()
    assert len(rows) == 3, logs
    assert "real tokens per second" in jobs["report"].text(), logs


@pytest.mark.parametrize(
    ("failing", "text", "replaced", "says"),
    [
        ("preprocess", "missing.jsonl", "", "missing.jsonl"),
        ("profile", "corpus.jsonl", "[model]\nn_heads = 5", "n_heads"),
    ],
)
def test_a_failed_step_says_why_and_none_of_those_after_it_runs(
    cluster: Cluster,
    chain: Path,
    open_mpi: dict[str, str],
    failing: str,
    text: str,
    replaced: str,
    says: str,
) -> None:
    with (chain / "chain.toml").open("a") as file:
        file.write(f"\n{replaced}\n")
    jobs = submit_chain(cluster, chain, open_mpi, text)
    n_before = STEPS.index(failing)
    states = [job.state for job in jobs.values()]
    expected = ["COMPLETED"] * n_before + ["FAILED"] + ["CANCELLED"] * (3 - n_before)
    assert states == expected, [job.text() for job in jobs.values()]
    assert says in jobs[failing].text()
    assert (chain / "new.h5").exists() == (n_before > 0)
    for job in list(jobs.values())[n_before + 1 :]:
        assert not job.log.exists()
    assert not (chain / "costs.h5").exists()
    assert not (chain / "run").exists()


ONE_REPLICA = """\
extends = "config.toml"
[cluster]
n_replicas = 1
"""


def test_the_lines_of_a_file_run_and_are_compared(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    (folder / "two.toml").write_text(ONE_REPLICA)
    naive = "two.toml --set planner.batch={rule='naive_padding'}"
    (folder / "variants.txt").write_text(f"{naive}\ntwo.toml\n")
    sizes = ["--array=1-2", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    words = [*sizes, str(SCRIPTS / "grid_search.sbatch"), "variants.txt", "runs"]
    changed = ["--set", "training.learning_rate=2e-3"]
    job = submit(cluster, folder, [*words, *changed], open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    while cluster.call("squeue", "--noheader"):
        time.sleep(0.2)
    configs = [(folder / "runs" / task / "config.toml").read_text() for task in ("1", "2")]
    assert 'rule = "naive_padding"' in configs[0]
    assert 'rule = "dynamic"' in configs[1]
    for task, config in zip(("1", "2"), configs, strict=True):
        assert "learning_rate = 0.002" in config
        rows = (folder / "runs" / task / "iterations.jsonl").read_text().splitlines()
        assert len(rows) == 3, job.text()
    compared = call(folder, None, "report", "runs/1", "runs/2")
    assert "planner.batch.rule: naive_padding in 1; dynamic in 2" in compared


SIZES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]


def test_the_ranks_of_two_nodes_make_one_dataset(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    words = [*SIZES, str(SCRIPTS / "preprocess.sbatch"), "corpus.jsonl", "new.h5"]
    job = submit(cluster, folder, words, open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    assert job.end() == "COMPLETED", job.text()
    with DatasetFile(folder / "new.h5") as new, DatasetFile(folder / "corpus.h5") as alone:
        assert new.target_lengths.tolist() == alone.target_lengths.tolist()


def test_the_ranks_of_a_run_measure_its_layers(
    cluster: Cluster, folder: Path, open_mpi: dict[str, str]
) -> None:
    words = [*SIZES, str(SCRIPTS / "profile.sbatch"), "config.toml", "-o", "costs.h5"]
    words += ["--set", "cluster.n_replicas=1"]
    job = submit(cluster, folder, words, open_mpi | {"LAUNCHER": "srun --mpi=pmix"})
    assert job.end() == "COMPLETED", job.text()
    assert read_table(folder / "costs.h5").provenance["ranks"] == "2"


@pytest.mark.parametrize(
    ("implementation", "launcher", "interface"),
    [("open_mpi", "srun --mpi=pmix", "PMIx"), ("mpich", "srun --mpi=pmi2", "PMI")],
)
def test_a_cluster_is_described_by_two_nodes(
    cluster: Cluster,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    implementation: str,
    launcher: str,
    interface: str,
) -> None:
    (tmp_path / "benchmarks").symlink_to(SCRIPTS.parent / "benchmarks")
    environment = {**request.getfixturevalue(implementation), "LAUNCHER": launcher}
    words = [*SIZES, str(SCRIPTS / "smoke.sbatch"), "report.json"]
    job = submit(cluster, tmp_path, words, environment)
    assert job.end() == "COMPLETED", job.text()
    text = (tmp_path / "report.json").read_text()
    assert not any(name in text for name in (*cluster.nodes, str(tmp_path)))
    checks = json.loads(text)["checks"]
    assert {name: check["status"] for name, check in checks.items()} == dict.fromkeys(
        [
            *("facts", "collectives", "one-sided accesses", "atomic accesses"),
            *("steps of a run", "collectives of two threads"),
        ],
        "done",
    )
    facts = checks["facts"]["found"]
    assert (facts["hosts"], facts["ranks"], facts["interface"]) == (2, 2, interface)
    assert all(rate["is_exact"] for rate in checks["atomic accesses"]["found"].values())
    assert checks["collectives of two threads"]["found"]["n_wrong"] == 0
