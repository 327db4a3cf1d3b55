"""Ranks of one host, as mpiexec starts them: nobody reaches them from outside."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.oracles.command_line import BIN, ROOT
from tests.oracles.listening import open_to_others

SAY_WHERE_IT_LISTENS = """
import os
from tests.oracles.listening import open_to_others
from dynapipe_hpc.experiment.world import MPI

MPI.COMM_WORLD.allreduce(1)
print(MPI.COMM_WORLD.Get_size(), open_to_others(os.getpid()), flush=True)
MPI.COMM_WORLD.Barrier()
"""


def ranks(*launch: str, **environment: str) -> list[str]:
    job = subprocess.run(
        [*launch, sys.executable, "-c", SAY_WHERE_IT_LISTENS],
        env={**os.environ, **ROOT, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return job.stdout.splitlines()


def test_no_rank_listens_for_other_hosts() -> None:
    assert ranks(str(BIN / "mpiexec"), "-n", "2") == ["2 []", "2 []"]
    assert ranks() == ["1 []"]


def test_a_user_may_choose_tcp_all_the_same() -> None:
    (rank,) = ranks(OMPI_MCA_btl="self,tcp")
    assert "0.0.0.0" in rank  # noqa: S104 - what is looked for


def test_the_tables_of_the_system_are_read_rightly() -> None:
    before = open_to_others(os.getpid())
    with socket.create_server(("127.0.0.1", 0)):
        assert open_to_others(os.getpid()) == before
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - what is looked for
        port = server.getsockname()[1]
        assert set(open_to_others(os.getpid())) - set(before) == {f"0.0.0.0 {port}"}
