"""The first job on a new cluster, which reports what the cluster does with this package."""

import json
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import SCRIPTS, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SIZE = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]


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
    words = [*SIZE, str(SCRIPTS / "smoke.sbatch"), "report.json"]
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
