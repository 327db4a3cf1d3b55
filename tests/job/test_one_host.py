"""Ranks of one host, as mpiexec starts them: nobody reaches them from outside."""

import sys
from pathlib import Path

import pytest
from tests.jobs.command_line import BIN, run_command

from dynapipe_hpc.job.launch import mpi_settings, prefer_loopback, read_started

SAY_WHERE_IT_LISTENS = """
import os
from tests.jobs.listening import open_to_others
from dynapipe_hpc.job.world import MPI

MPI.COMM_WORLD.allreduce(1)
print(MPI.COMM_WORLD.Get_size(), open_to_others(os.getpid()), flush=True)
MPI.COMM_WORLD.Barrier()
"""


SAY_ITS_ENVIRONMENT = """
import os
before = dict(os.environ)
from dynapipe_hpc.job.world import MPI
changed = {name for name in os.environ if os.environ[name] != before.get(name)}
print(sorted(changed - {"OPAL_PREFIX", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}))
"""
JOB = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


def ranks(*launch: str, program: str = SAY_WHERE_IT_LISTENS, **environment: str) -> list[str]:
    command = (*launch, sys.executable, "-c", program)
    job = run_command(*command, folder=Path(__file__).parents[2], variables=environment)
    assert job.returncode == 0, job.stderr
    return job.stdout.splitlines()


def test_no_rank_listens_for_other_hosts() -> None:
    assert ranks(str(BIN / "mpiexec"), "-n", "2") == ["2 []", "2 []"]
    assert ranks() == ["1 []"]


def test_a_user_may_choose_tcp_all_the_same() -> None:
    (rank,) = ranks(OMPI_MCA_btl="self,tcp")
    assert "0.0.0.0" in rank  # noqa: S104 - what is looked for


def test_processes_that_a_rank_starts_may_belong_to_other_jobs() -> None:
    assert ranks(program=SAY_ITS_ENVIRONMENT) == ["[]"]


@pytest.mark.parametrize(
    ("launched", "expected"),
    [
        ({}, {"OMPI_MCA_btl": "self"}),
        (JOB | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, {"OMPI_MCA_btl": "self,vader"}),
        (JOB | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, {}),
    ],
)
def test_what_a_user_has_set_stays(launched: dict[str, str], expected: dict[str, str]) -> None:
    chosen = {"UCX_TLS": "tcp", "HOME": "/home/one"}
    environment = dict(chosen)
    with mpi_settings(read_started(launched, 1), environment, is_own=False):
        assert environment == {**chosen, **expected}
    assert environment == chosen


def test_nccl_takes_the_loopback_interface_on_one_host_only() -> None:
    environment = {"NCCL_SOCKET_IFNAME": "ib0"}
    prefer_loopback(read_started(JOB, 1), environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "ib0"}
    prefer_loopback(read_started({}, 1), environment)
    assert environment == {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "lo"}
