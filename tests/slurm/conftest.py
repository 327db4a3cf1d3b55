"""The cluster and the project that the tests submit jobs to and about."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.command_line import write_job_files
from tests.jobs.mpi_implementations import HOW_TO_GET_MPICH, LIBRARY, MPICH, OPEN_MPI
from tests.slurm.cluster import Cluster, missing

NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes; all their processes end with the tests."""
    why_not = missing()
    if why_not:
        pytest.skip(why_not)
    # Not pytest's folder: the paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    started = Cluster(folder, NODES)
    try:
        started.start()
        yield started
    finally:
        started.stop()
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster: Cluster) -> Iterator[None]:
    """After every test, no process of any job is left, and all nodes are there again."""
    yield
    cluster.end_jobs()
    assert cluster.processes() == []
    cluster.await_nodes()


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration for 4 ranks and its dataset."""
    path = tmp_path_factory.mktemp("project")
    data = {"max_tokens": 128, "tokens_per_batch": 512}
    write_job_files(path, {"data": data, "training": {"iterations": 3}})
    return path


@pytest.fixture
def folder(project: Path, tmp_path: Path) -> Path:
    """Folder in which a job of one test runs."""
    for name in ("corpus.jsonl", "corpus.h5", "config.toml"):
        (tmp_path / name).symlink_to(project / name)
    return tmp_path


@pytest.fixture(scope="session")
def open_mpi() -> dict[str, str]:
    return {
        "PATH": f"{OPEN_MPI}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # The nodes have one address, that of the machine with itself.
        "OMPI_MCA_btl_tcp_if_include": "lo",
    }


@pytest.fixture(scope="session")
def mpich() -> dict[str, str]:
    if not MPICH.exists():
        pytest.skip(HOW_TO_GET_MPICH)
    path = f"{MPICH}:{OPEN_MPI}:{os.environ['PATH']}"
    return {"PATH": path, "OMP_NUM_THREADS": "1", **LIBRARY[MPICH]}
