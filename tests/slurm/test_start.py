"""Every way to start ranks on a cluster, with a small training each."""

import json
import re
from pathlib import Path

import pytest
from tests.jobs.mpi_implementations import MPICH, OPEN_MPI
from tests.slurm.cluster import SCRIPTS, Cluster, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

# A core for each thread of a rank: on one, they would wait for each other most of the time.
RANKS = ["--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=2"]
RUN = [*RANKS, str(SCRIPTS / "run.sbatch"), "config.toml", "-o", "run"]


@pytest.mark.parametrize(
    ("implementation", "launcher", "known_as"),
    [
        ("open_mpi", "srun --mpi=pmix", "srun"),
        (
            "open_mpi",
            f"{OPEN_MPI / 'mpiexec'} --map-by slot:PE=2 --bind-to core",
            "mpiexec of Open MPI",
        ),
        ("mpich", "srun --mpi=pmi2", "srun"),
        ("mpich", f"{MPICH / 'mpiexec'} -bind-to core:2", "mpiexec of MPICH"),
    ],
)
def test_four_ranks_on_four_nodes_train(
    cluster: Cluster,
    folder: Path,
    request: pytest.FixtureRequest,
    implementation: str,
    launcher: str,
    known_as: str,
) -> None:
    environment = {**request.getfixturevalue(implementation), "LAUNCHER": launcher}
    job = submit(cluster, folder, RUN, environment)
    assert job.end() == "COMPLETED", job.text()
    assert job.iterations() == [0, 1, 2]
    machine = json.loads((folder / "run" / "machine.json").read_text())
    assert machine["launcher"] == known_as
    assert machine["ranks"] == 4
    assert machine["slurm_job"] == str(job.job_id)


@pytest.mark.parametrize(
    ("implementation", "pmi", "way_out"),
    [
        ("open_mpi", "none", "offers no PMI, .* alone.* srun --mpi=pmix"),
        ("open_mpi", "pmi2", "offers PMI, .* alone.* srun --mpi=pmix"),
        ("mpich", "none", "offers no PMI, .* alone.* srun --mpi=pmi2"),
        ("mpich", "pmix", "offers PMIx, .* built without it.* srun --mpi=pmi2"),
    ],
)
def test_ranks_that_cannot_meet_do_not_start(
    cluster: Cluster,
    folder: Path,
    request: pytest.FixtureRequest,
    implementation: str,
    pmi: str,
    way_out: str,
) -> None:
    environment = request.getfixturevalue(implementation) | {"LAUNCHER": f"srun --mpi={pmi}"}
    job = submit(cluster, folder, RUN, environment)
    assert job.end() == "FAILED"
    assert job.exit_code == 2, job.text()
    said = [line for line in job.text().splitlines() if line.startswith("dynapipe-hpc:")]
    assert len(said) == 1
    assert re.search(rf"4 processes were started by srun, which {way_out}", said[0])
    assert not (folder / "run").exists()


TWO_EACH = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1"]
PLACE = """
import os
from dynapipe_hpc.job.launch import device_index, read_started

cores = os.sched_getaffinity(0)
started = read_started(os.environ, len(cores))
devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
device = devices[device_index(started.local_rank, len(devices))]
print(f"{os.environ['SLURMD_NODENAME']} GPU {device} core {cores} of {started.n_cores}\\n", end="")
"""


@pytest.mark.parametrize(
    ("implementation", "launcher", "gpus"),
    [
        ("open_mpi", "srun", "--gpus-per-node=2"),
        ("open_mpi", "srun", "--gpus-per-task=1"),
        (
            "open_mpi",
            f"{OPEN_MPI / 'mpiexec'} --map-by slot:PE=1 --bind-to core",
            "--gpus-per-node=2",
        ),
        ("mpich", f"{MPICH / 'mpiexec'} -bind-to core:1", "--gpus-per-node=2"),
    ],
)
def test_ranks_have_cores_and_gpus_of_their_own(
    cluster: Cluster,
    folder: Path,
    request: pytest.FixtureRequest,
    implementation: str,
    launcher: str,
    gpus: str,
) -> None:
    (folder / "place.py").write_text(PLACE)
    script = (SCRIPTS / "run.sbatch").read_text()
    python = OPEN_MPI / "python"
    (folder / "place.sbatch").write_text(script.replace("dynapipe-hpc run", str(python)))
    words = [*TWO_EACH, gpus, "place.sbatch", "place.py"]
    environment = request.getfixturevalue(implementation) | {"LAUNCHER": launcher}
    job = submit(cluster, folder, words, environment)
    assert job.end() == "COMPLETED", job.text()
    assert sorted(job.text().splitlines()) == [
        f"{node} GPU {k} core {{{k}}} of 1" for node in ("n0", "n1") for k in (0, 1)
    ]
