"""The examination of a job, section by section: its ranks, the run folder, a configuration."""

import os
import platform
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from dynapipe_hpc.data.errors import InputError, RunError, escaped, print_error
from dynapipe_hpc.experiment.checks import check_run, check_size, check_torch
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.launch import device_index
from dynapipe_hpc.job.machine import crowded_hosts, usable_bytes
from dynapipe_hpc.job.world import STARTED
from dynapipe_hpc.planner.batch.memory import activation_bytes, misfit_error
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.report.run_folder import LOCK
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlannerTurns
from dynapipe_hpc.store.ring_layout import RingLayout

_GB = 1e9
_SHARED = Path("/dev/shm")  # noqa: S108 - a fact of Linux, not a place for files of ours
_PLAN_BYTES = 65536
_MAX_S = 120.0
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and the experiment that it is to run.

    `path` names a configuration; without one, only the machine is examined. If it cannot be used,
    `error` is the reason and `files` is None. `folder` is where a run would write.
    """

    job: Job
    on_host: Job
    folder: Path
    path: Path | None = None
    files: Experiment | None = None
    error: str = ""

    @classmethod
    def from_arguments(
        cls, job: Job, path: Path | None, overrides: list[str], output: Path | None
    ) -> "Case":
        """Reads the configuration, if there is one; all ranks together."""
        config, reason = None, ""
        if path and job.is_first:
            try:
                config = load_config(path, overrides)
            except InputError as error:
                reason = str(error)
        # Ranks with a configuration make collective calls that others do not.
        config = job.broadcast(config)
        files = Experiment(config) if config else None
        return cls(job, job.on_this_host(), output or Path("runs"), path, files, reason)

    def close(self) -> None:
        self.on_host.free()

    @property
    def config(self) -> ExperimentConfig | None:
        return self.files.config if self.files else None


class Level(Enum):
    FACT = ""
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine, the job or its files; if it is not good, also how to fix it."""

    subject: str
    text: str
    level: Level = Level.FACT


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The findings of all ranks, each once; where ranks differ, with the ranks' numbers."""
    ranks_of: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(by_rank):
        for finding in findings:
            ranks_of.setdefault(finding, []).append(rank)
    n_texts = Counter(finding.subject for finding in ranks_of)
    order = {subject: place for place, subject in enumerate(n_texts)}
    findings = []
    for finding, ranks in sorted(ranks_of.items(), key=lambda item: order[item[0].subject]):
        named = ", ".join(map(str, ranks[:_MAX_LISTED])) + ", ..." * (len(ranks) > _MAX_LISTED)
        text = f"{finding.text} (rank{'s' * (len(ranks) > 1)} {named})"
        findings.append(replace(finding, text=text) if n_texts[finding.subject] > 1 else finding)
    return findings


def lines(heading: str, findings: Sequence[Finding]) -> Iterator[str]:
    width = max((len(finding.subject) for finding in findings), default=0)
    yield heading
    for finding in findings:
        mark = f"{finding.level.value}: " if finding.level.value else ""
        yield f"  {finding.subject:{width}}  {mark}{finding.text}"


def examine(case: Case) -> bool:
    """Prints all findings by section; returns whether nothing prevents a run (collective)."""
    levels: Counter[Level] = Counter()
    for heading, look in _SECTIONS.items():
        with _ending(case, heading):
            findings = merged(case.job.gather(list(look(case))))
        levels.update(finding.level for finding in findings)
        if findings:
            print(escaped("\n".join(lines(heading, findings))), flush=True)
    problems, warnings = levels[Level.PROBLEM], levels[Level.WARNING]
    if case.job.is_first:
        verdict = f"problems: {problems}, warnings: {warnings}"
        print(verdict if problems or warnings else "all is well", flush=True)
    return case.job.broadcast(not problems)


@contextmanager
def _ending(case: Case, heading: str) -> Iterator[None]:
    def end() -> None:
        print_error(
            f"{heading}: PROBLEM: did not end within {_MAX_S:.0f} s on rank {case.job.rank}; MPI "
            "or NCCL may use a network that does not work between these hosts: name another (Open "
            "MPI: OMPI_MCA_btl_tcp_if_include, MPICH: FI_PROVIDER, NCCL: NCCL_SOCKET_IFNAME)"
        )
        case.job.comm.Abort(2)

    timer = threading.Timer(_MAX_S, end)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def check_launch(case: Case) -> Iterator[Finding]:
    """Ranks, hosts and cores, as the job sees them (collective)."""
    n_hosts = sum(case.job.all_gather_int(int(case.on_host.is_first)))
    try:
        if case.config:
            check_size(case.job.size, case.config.cluster)
        yield Finding("ranks", f"{case.job.size} on {n_hosts} host{'s' if n_hosts > 1 else ''}")
    except InputError as error:
        yield Finding("ranks", str(error), Level.PROBLEM)
    threads = case.config.training.threads if case.config else 1
    yield Finding("cores", f"{STARTED.n_cores} per rank")
    for line in crowded_hosts(case.job, threads):
        yield Finding("cores of hosts", line, Level.WARNING)


def check_store(case: Case) -> Iterator[Finding]:
    """One-sided access between ranks, by which plans are sent (collective)."""
    job, host = case.job, case.on_host.broadcast(case.job.rank)
    try:
        store = MpiPlanStore(job.comm, 1, _PLAN_BYTES, host=host)
    except RunError as error:  # on all ranks
        yield Finding("plan store", str(error), Level.PROBLEM)
        return
    store.close()
    yield Finding("plan store", str(store.progress).removeprefix("plan store: "))


def check_devices(case: Case) -> Iterator[Finding]:
    """GPUs of ranks, and transfers of tensors between them (collective).

    torch may be missing or broken.
    """
    fault = _fault_of_torch()
    if fault:
        yield Finding("torch", fault, Level.PROBLEM)
    # All ranks look at devices together, so if one rank cannot, none does.
    if not all(case.job.all_gather_int(not fault)):
        return
    import torch

    from dynapipe_hpc.experiment.rank.channels import connect
    from dynapipe_hpc.experiment.rank.devices import find_device

    job, config, on = case.job, case.config, None
    if config:
        try:
            on = find_device(job, config)
        except InputError as error:
            yield Finding("GPUs", str(error), Level.PROBLEM)
    if n_devices := torch.cuda.device_count():
        # Only this one: asking for another GPU's memory would put a context there, which is
        # forbidden if a rank uses it exclusively.
        index = device_index(case.on_host.rank, n_devices)
        torch.cuda.set_device(index)
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        sizes = f"{total_bytes / _GB:.1f} GB, {free_bytes / _GB:.1f} GB free"
        yield Finding(f"GPU {index}", f"{torch.cuda.get_device_name(index)}, {sizes}")
    elif on or not config:
        yield Finding("GPUs", "none: ranks compute on CPUs")
    # The configuration may be for another number of ranks, and only some may have found a GPU.
    can_connect = on is not None and config is not None and job.size == config.cluster.n_ranks
    if all(job.all_gather_int(can_connect)) and on and config:
        # As in a run, the ranks connect, and add up numbers of all stages.
        channels = connect(config, {}, job, on)
        channels.collectives.sum_within_replica(torch.ones(1, device=on.device))
        channels.close()
        way = "NCCL" if on.device.type != "cpu" and not on.is_shared else "MPI"
        yield Finding("tensors", f"added up over {way}{', as ranks share GPUs' * on.is_shared}")


@cache
def _fault_of_torch() -> str:
    """Reason why torch cannot be loaded; empty if it can."""
    try:
        check_torch()
    except InputError as error:
        return str(error)
    return ""


def _uses_gpus(config: ExperimentConfig) -> bool:
    if (wants := config.training.device) != "auto" or _fault_of_torch():
        return wants == "cuda"
    import torch

    return torch.cuda.device_count() > 0


def check_host(case: Case) -> Iterator[Finding]:
    """Memory and shared memory of each host (collective); its first rank reports."""
    if case.on_host.is_first:
        host, n_ranks = platform.node(), case.on_host.size
        yield _memory(case, host, n_ranks)
        yield _shared_memory(case, host, n_ranks)


def _memory(case: Case, host: str, n_ranks: int) -> Finding:
    subject, usable = f"memory of {host}", usable_bytes()
    text = f"{usable / _GB:.1f} GB for {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    if case.config is None or _uses_gpus(case.config):
        return Finding(subject, text)
    rank_bytes = case.config.cluster.device_memory_bytes
    text += f", which may use {rank_bytes / _GB:.1f} GB each (cluster.device_memory_bytes)"
    if n_ranks * rank_bytes <= usable:
        return Finding(subject, text)
    lower = f"{text}: more than the host has; lower it to {usable // n_ranks:,} or use more hosts"
    return Finding(subject, lower, Level.PROBLEM)


def _shared_memory(case: Case, host: str, n_ranks: int) -> Finding:
    subject = f"{_SHARED} of {host}"
    try:
        free_bytes = shutil.disk_usage(_SHARED).free
    except OSError as error:
        return Finding(subject, f"cannot be used: {error.strerror}; mount it", Level.PROBLEM)
    store = case.config.store if case.config else StoreConfig()
    n_all_ranks = case.config.cluster.n_ranks if case.config else case.job.size
    capacity = PlannerTurns(n_all_ranks, store.look_ahead).capacity
    needed = RingLayout(n_ranks, capacity, store.plan_bytes).ring_bytes
    text = f"{free_bytes / 1e6:,.0f} MB free, of which plans take up to {needed / 1e6:,.0f} MB"
    if needed <= free_bytes or "OMPI_MCA_osc_sm_backing_directory" in os.environ:
        return Finding(subject, text)
    return Finding(
        subject,
        f"{text}; remove files that killed jobs left there, make it larger (containers: "
        "--shm-size), lower store.plan_bytes or store.look_ahead, or let Open MPI use a local "
        "folder: OMPI_MCA_osc_sm_backing_directory",
        Level.PROBLEM,
    )


def check_folder(case: Case) -> Iterator[Finding]:
    """Locks a folder as runs do, by renaming, and looks for the lock on every rank (collective)."""
    folder = case.folder.resolve()
    place = next(each for each in (folder, *folder.parents) if each.exists())
    made, locked = Path(), Path()
    if case.job.is_first:
        try:
            made = Path(mkdtemp(prefix=".dynapipe-hpc-", dir=place))
            lock = RunLock(made)
            lock.acquire()
            locked = made
            yield Finding("lock", f"{place}: taken by renaming a folder")
        except OSError as error:
            remedy = "name another folder with -o, or change its permissions"
            yield Finding("lock", f"{place}: {error.strerror}; {remedy}", Level.PROBLEM)
        except InputError as error:
            yield Finding("lock", str(error), Level.PROBLEM)
    # Outside of `try`: ranks that make more collective calls than others wait forever.
    written = case.job.broadcast(locked)
    if written != Path() and not (written / LOCK).exists():
        yield Finding(
            f"seen from {platform.node()}",
            f"the lock that the first rank wrote to {place} is not visible here; runs need a file "
            "system that all hosts share",
            Level.PROBLEM,
        )
    case.job.barrier()
    if locked != Path():
        lock.release()
    if made != Path():
        shutil.rmtree(made, ignore_errors=True)


def check_config(case: Case) -> Iterator[Finding]:
    """The checks at the start of a run, then memory; on the first rank only."""
    if not case.job.is_first or case.path is None:
        return
    if case.files is None:
        yield Finding("run", case.error, Level.PROBLEM)
        return
    try:
        check_run(case.files)
        yield Finding("run", f"{case.path}: can be used")
        yield Finding("memory", _check_longest_sample(case.files.open()))
    except (InputError, OSError) as error:
        yield Finding("run", str(error), Level.PROBLEM)


def _check_longest_sample(experiment: Experiment) -> str:
    planner, cluster = experiment.config.planner, experiment.config.cluster
    cost = experiment.planner.cost.of_layout(planner.plainest_layout)
    one = np.ones(1, np.int64)
    longest = (padded(one * side.max(), planner.document_multiple) for side in experiment.rows)
    # The last mode recomputes the most, and keeps the least.
    costs = cost.stage_costs(Shapes.padded(one, *longest), cost.recompute_modes[-1])
    needed = cost.static_bytes + activation_bytes(costs)[0]
    if (needed <= cluster.device_memory_bytes).all():
        return f"with the longest sample, {needed.max() / 1e6:,.1f} MB on the fullest stage"
    if experiment.config.may_slice:
        return "the longest sample alone does not fit: it runs as slices"
    raise misfit_error("the longest sample", costs, cost, cluster, way_out="lower data.max_tokens")


_SECTIONS: dict[str, Callable[[Case], Iterable[Finding]]] = {
    "launch": check_launch,
    "one-sided access": check_store,
    "devices": check_devices,
    "hosts": check_host,
    "run folder": check_folder,
    "configuration": check_config,
}
