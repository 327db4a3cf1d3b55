"""A Slurm controller with some nodes on this machine, for tests."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.jobs.command_line import run_command

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
CPUS = 2
GPUS = 2
READY_WITHIN_S = 60
END_WITHIN_S = 90

_SLURM = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=200000,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
EnforcePartLimits=ALL
MpiDefault=none
ReturnToService=2
KillWait=60
MinJobAge=3600
MessageTimeout=60
GresTypes=gpu
PartitionName=normal Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL Default=NO State=UP PriorityTier=9
"""
_NODE = (
    "NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=2000 Gres=gpu:{gpus}\n"
)
_GPUS = "NodeName={names} Name=gpu File={folder}/gpu[0-{last}] Flags=nvidia_gpu_env\n"
_ON_A_NODE = """\
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
exec slurmd -N {name} -f {folder}/{name}/slurm.conf
"""


def missing() -> str | None:
    """Reason for which no cluster can be started here; None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not found: tests/slurm/install.sh says how to get them"
    if os.geteuid() != 0:
        return "a private Slurm controller needs root"
    if not os.sched_getaffinity(0).issuperset(range(CPUS)):
        return f"the nodes bind ranks to the first {CPUS} cores, which may not be used here"
    with tempfile.TemporaryDirectory() as folder:
        probe = f"mknod {folder}/gpu c 1 3 && mount -t tmpfs tmpfs {folder}"
        answer = subprocess.run(
            ["unshare", "--uts", "--mount", "sh", "-c", probe], check=False, capture_output=True
        )
    return "namespaces or devices are not permitted here" if answer.returncode else None


@dataclass(frozen=True, slots=True)
class Cluster:
    folder: Path
    nodes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        """Environment that commands of Slurm need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *words: str) -> str:
        """The output of a command of Slurm."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            words, env=environment, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    def start(self) -> None:
        self._configure()
        munge = {
            "socket": "munge.socket",
            "key-file": "munge/key",
            "pid-file": "munged.pid",
            "log-file": "munge/log",
            "seed-file": "munge/seed",
        }
        options = [f"--{name}={self.folder / file}" for name, file in munge.items()]
        self._run("munged", "--force", *options)
        self._run("slurmctld", "-c", "-f", str(self.folder / "slurm.conf"))
        for name in self.nodes:
            self.start_node(name)
        self.await_nodes()

    def start_node(self, name: str) -> None:
        script = _ON_A_NODE.format(name=name, folder=self.folder)
        self._run("unshare", "--uts", "--mount", "sh", "-ec", script)

    def fail_node(self, name: str) -> None:
        """Ends all that runs on a node at once, as a power failure would."""
        kill([self._pid(f"{name}/slurmd.pid"), *self.processes(name)])
        self.call("scontrol", "update", f"nodename={name}", "state=down", "reason=power")

    def processes(self, name: str = "") -> list[int]:
        """The processes of jobs that are left, on one node or on all."""
        mark = f"SLURM_CONF={self.folder / name}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    def end_jobs(self) -> None:
        self.call("scancel", "--user=root")
        ended_by = time.monotonic() + END_WITHIN_S
        while self.processes() and time.monotonic() < ended_by:
            time.sleep(0.1)

    def stop(self) -> None:
        with suppress(subprocess.SubprocessError):
            self.end_jobs()
        kill(self.processes())
        daemons = [f"{name}/slurmd.pid" for name in self.nodes]
        kill(self._pid(file) for file in (*daemons, "slurmctld.pid", "munged.pid"))

    def _pid(self, file: str) -> int:
        with suppress(OSError, ValueError):
            return int((self.folder / file).read_text())
        return 0

    def _run(self, *words: str) -> None:
        """Starts a daemon, which goes to the background."""
        with (self.folder / f"{words[0]}.txt").open("ab") as log:
            # With their own environment, jobs could not be told from daemons.
            environment = {k: v for k, v in os.environ.items() if k != "SLURM_CONF"}
            subprocess.run(
                words, env=environment, stdout=log, stderr=log, check=True, timeout=READY_WITHIN_S
            )

    def _configure(self) -> None:
        for folder in ("munge", "state", *self.nodes):
            (self.folder / folder).mkdir(mode=0o700)
        (self.folder / "munge" / "key").write_bytes(os.urandom(1024))
        (self.folder / "munge" / "key").chmod(0o400)
        for k in range(GPUS):
            os.mknod(self.folder / f"gpu{k}", 0o20666, os.makedev(1, 3))
        controller_port, *ports = free_ports(1 + len(self.nodes))
        host = socket.gethostname().partition(".")[0]
        text = _SLURM.format(host=host, controller_port=controller_port, folder=self.folder)
        for name, port in zip(self.nodes, ports, strict=True):
            text += _NODE.format(name=name, port=port, cpus=CPUS, gpus=GPUS)
        (self.folder / "slurm.conf").write_text(text)
        names = ",".join(self.nodes)
        gpus = _GPUS.format(names=names, folder=self.folder, last=GPUS - 1)
        (self.folder / "gres.conf").write_text(gpus)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        hosts = "".join(f"127.0.0.1 {name}\n" for name in self.nodes)
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + hosts)
        for name in self.nodes:
            for file in ("slurm.conf", "gres.conf", "cgroup.conf"):
                (self.folder / name / file).symlink_to(self.folder / file)
            (self.folder / name / "mpi.conf").write_text(
                f"PMIxCliTmpDirBase={self.folder / name}\n"
            )

    def await_nodes(self) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while self.call("sinfo", "-h", "-N", "-o", "%T", "-p", "normal").split() != ["idle"] * len(
            self.nodes
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(self.call("sinfo", "-N", "-l"))
            time.sleep(0.1)


def free_ports(n_ports: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n_ports)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)


SCRIPTS = Path(__file__).parents[2] / "slurm"
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
PATIENCE_S = 240
CRASHED_IN_MPI_INIT = ("(mca_pml_ob1_recv_frag_callback_match+", "(ompi_mpi_init+")


@dataclass(frozen=True, slots=True)
class BatchJob:
    cluster: Cluster
    job_id: int
    log: Path

    @property
    def state(self) -> str:
        """As Slurm calls it: PENDING, RUNNING, ..."""
        return self.fact("JobState")

    @property
    def exit_code(self) -> int:
        return int(self.fact("ExitCode").partition(":")[0])

    @property
    def n_restarts(self) -> int:
        """Number of times that it was put back in the queue."""
        return int(self.fact("Restarts"))

    def fact(self, name: str) -> str:
        """A fact about the job, from Slurm."""
        facts = self.cluster.call("scontrol", "show", "job", str(self.job_id))
        found = re.search(rf"\b{name}=(\S*)", facts)
        assert found is not None, facts
        return found[1]

    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text() if self.log.exists() else ""

    def iterations(self) -> list[int]:
        """The iterations it has told of, those after a restart included."""
        return [int(k) for k in re.findall(r"^iteration +(\d+)", self.text(), re.MULTILINE)]

    def wait_for(self, condition: Callable[["BatchJob"], bool]) -> None:
        """Waits until something is so; fails once it cannot be any more."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self):
            state = self.state
            if time.monotonic() > deadline or (state in ENDED and not condition(self)):
                raise AssertionError(f"job {self.job_id} is {state}:\n{self.text()}")
            time.sleep(0.2)

    def end(self) -> str:
        """Waits for the end, and says the state it ended in."""
        self.wait_for(lambda job: job.state in ENDED)
        if all(name in self.text() for name in CRASHED_IN_MPI_INIT):
            self.cluster.call("scontrol", "requeue", str(self.job_id))
            self.wait_for(lambda job: job.n_restarts == 1 and job.state in ENDED)
        return self.state


def submit(
    cluster: Cluster, folder: Path, words: list[str], environment: Mapping[str, str]
) -> BatchJob:
    log = folder / "job.out"
    command = ("sbatch", "--parsable", "--time=10", f"--output={log}", *words)
    variables = {**environment, **cluster.environment}
    answer = run_command(*command, folder=folder, variables=variables)
    assert answer.returncode == 0, answer.stderr
    return BatchJob(cluster, int(answer.stdout), log)
