import _ctypes
import os
import subprocess
import sys
from pathlib import Path
from shutil import copy

import pytest
from tests.jobs.command_line import BIN, run_command

from dynapipe_hpc.job.launch import OF_RANKS, mpi_settings, prefer_loopback, read_started

LOAD_ANOTHER_MPI = """
import ctypes, os, sys
from dynapipe_hpc.job.launch import read_started
from dynapipe_hpc.job.launch import is_own_open_mpi

sys.prefix = sys.argv[1]
ctypes.CDLL(f"{sys.prefix}/lib/libmpi.so.12")
print(is_own_open_mpi())
"""
FILES = "OMPI_MCA_mca_base_param_files"


def alone(program: str, *arguments: str) -> str:
    launched = ("PMI", "OMPI", "PMIX")
    environment = {n: value for n, value in os.environ.items() if not n.startswith(launched)}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_a_process_alone_has_no_shared_memory_that_it_could_leave_behind() -> None:
    program = (
        "from pathlib import Path; import dynapipe_hpc.job.world\n"
        "print([f for f in Path('/proc/self/maps').read_text().split() if '/dev/shm' in f])"
    )
    assert alone(program) == "[]\n"


def test_another_mpi_in_the_environment_is_not_taken_for_open_mpi(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    copy(_ctypes.__file__, tmp_path / "lib" / "libmpi.so.12")  # as a wheel of MPICH has it
    assert alone(LOAD_ANOTHER_MPI, str(tmp_path)) == "False\n"


def test_settings_are_for_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILES, raising=False)
    before = dict(os.environ)
    with mpi_settings(read_started({}, 1), os.environ, is_own=True):
        assert os.environ[FILES].endswith(f",{OF_RANKS}")
    assert dict(os.environ) == before


@pytest.mark.parametrize("is_own", [True, False])
def test_a_home_is_there_where_the_environment_has_none(
    is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    with mpi_settings(read_started({}, 1), os.environ, is_own=is_own):
        assert Path(os.environ["HOME"]).is_absolute()
    assert "HOME" not in os.environ


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="not a virtual environment")
def test_the_settings_are_in_the_environment_where_mpiexec_reads_them() -> None:
    for settings in OF_RANKS.parent.glob("*.conf"):
        installed = Path(sys.prefix) / "etc" / settings.name
        assert installed.read_text() == settings.read_text()


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
