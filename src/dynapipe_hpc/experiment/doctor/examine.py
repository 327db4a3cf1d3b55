"""The examination of a job, section by section: its machine, the run folder, a configuration."""

import os
import platform
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import dynapipe_hpc
from dynapipe_hpc.data.errors import InputError, RunError, escaped, print_error
from dynapipe_hpc.experiment.checks import RUN_CHECKS, check_torch, configured, cost_warnings
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.launch import device_index, library_name
from dynapipe_hpc.job.machine import crowded_hosts, usable_bytes
from dynapipe_hpc.job.slurm import read_slurm_job
from dynapipe_hpc.job.world import MPI, STARTED
from dynapipe_hpc.planner.batch.memory import activation_bytes, misfit_error
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.store.mpi import MpiPlanStore
from dynapipe_hpc.store.plan_store import PlannerTurns
from dynapipe_hpc.store.ring_layout import RingLayout

_GB = 1e9
_SHARED = Path("/dev/shm")  # noqa: S108 - a fact of Linux, not a place for files of ours
_PLAN_BYTES = 65536
_MORE = "python -m torch.utils.collect_env"
_BLOCK = bytes(1 << 20)
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
        files, reason = None, ""
        try:
            files = Experiment(load_config(path, overrides)) if path else None
        except InputError as error:
            reason = str(error)
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
    return [
        finding if n_texts[finding.subject] == 1 else _of_ranks(finding, ranks)
        for finding, ranks in sorted(ranks_of.items(), key=lambda item: order[item[0].subject])
    ]


def _of_ranks(finding: Finding, ranks: Sequence[int]) -> Finding:
    listed = ", ".join(map(str, ranks[:_MAX_LISTED])) + ", ..." * (len(ranks) > _MAX_LISTED)
    return replace(finding, text=f"{finding.text} (rank{'s' * (len(ranks) > 1)} {listed})")


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
            f"{heading}: PROBLEM: did not end within {_MAX_S:.0f} s on rank "
            f"{case.job.rank}; the MPI library may use a network that does not work between these "
            "hosts: name another (Open MPI: OMPI_MCA_btl_tcp_if_include, MPICH: FI_PROVIDER)"
        )
        case.job.comm.Abort(2)

    timer = threading.Timer(_MAX_S, end)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def check_launch(case: Case) -> Iterator[Finding]:
    """Launcher, MPI library, Slurm, hosts and cores (collective)."""
    n_hosts = sum(case.job.all_gather_int(int(case.on_host.is_first)))
    yield Finding("ranks", f"{case.job.size} on {n_hosts} host{'s' if n_hosts > 1 else ''}")
    yield Finding("launcher", STARTED.launcher or "none: a single process, started directly")
    yield Finding("PMI", STARTED.interface or "none")
    yield Finding("MPI", library_name(MPI.Get_library_version()))
    slurm_job = read_slurm_job(os.environ)
    yield Finding(
        "Slurm",
        f"job {slurm_job.name}, restarts {slurm_job.n_restarts}"
        if slurm_job
        else "none (SLURM_JOB_ID is not set)",
    )
    threads = case.config.training.threads if case.config else 1
    yield Finding("cores", f"{STARTED.n_cores} per rank")
    for line in crowded_hosts(case.job, threads):
        yield Finding("cores of hosts", line, Level.WARNING)


def check_access(case: Case) -> Iterator[Finding]:
    job, host = case.job, case.on_host.broadcast(case.job.rank)
    try:
        store = MpiPlanStore(job.comm, 1, _PLAN_BYTES, host=host)
    except RunError as error:  # on all ranks
        yield Finding("plan store", str(error), Level.PROBLEM)
        return
    store.close()
    yield Finding("plan store", str(store.progress).removeprefix("plan store: "))


def check_software(case: Case) -> Iterator[Finding]:
    """Versions, and the GPU of this rank; torch may be missing or broken."""
    yield Finding("dynapipe-hpc", f"{dynapipe_hpc.__version__}, Python {platform.python_version()}")
    fault = _fault_of_torch()
    # All ranks look at devices together, so if one rank cannot, none does.
    all_have_it = all(case.job.all_gather_int(not fault))
    if fault:
        yield Finding("torch", fault, Level.PROBLEM)
        return
    yield Finding("torch", f"{metadata.version('torch')}; for its build and drivers: {_MORE}")
    if all_have_it:
        yield from check_devices(case)


def check_devices(case: Case) -> Iterator[Finding]:
    """The GPU of this rank, and whether a run can use it as it should (collective)."""
    import torch

    from dynapipe_hpc.experiment.rank import devices

    if case.config:
        try:
            devices.find_device(case.job, case.config)
        except InputError as error:
            yield Finding("GPUs", str(error), Level.PROBLEM)
            return
    if not (n_devices := torch.cuda.device_count()):
        yield Finding("GPUs", "none: ranks compute on CPUs")
        return
    # Only this one: asking for another GPU's memory would put a context there, which is forbidden
    # if a rank uses it exclusively.
    index = device_index(case.on_host.rank, n_devices)
    torch.cuda.set_device(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    sizes = f"{total_bytes / _GB:.1f} GB, {free_bytes / _GB:.1f} GB free"
    yield Finding(f"GPU {index}", f"{torch.cuda.get_device_name(index)}, {sizes}")
    if case.config and case.config.training.device != "cpu":
        host = devices.find_host_device(case.config)
        yield Finding("attention", host.attention)
        for warning in devices.device_warnings(case.config, host):
            yield Finding("speed", warning, Level.WARNING)


def circumstances_here(config: ExperimentConfig, n_ranks: int) -> Mapping[str, str]:
    """Circumstances of a job; without torch, only those that the configuration decides."""
    if _fault_of_torch():
        return configured(config)
    from dynapipe_hpc.experiment.rank.devices import circumstances, find_host_device

    return circumstances(config, find_host_device(config), n_ranks)


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
    """Writes and renames a file, and looks for it from every rank (collective)."""
    folder = case.folder.resolve()
    place = next(each for each in (folder, *folder.parents) if each.exists())
    written = Path()
    if case.job.is_first:
        try:
            written = _write(place)
            yield Finding("writing", f"{place}: 1 MiB written and renamed")
        except OSError as error:
            remedy = "name another folder with -o, or change its permissions"
            yield Finding("writing", f"{place}: {error.strerror}; {remedy}", Level.PROBLEM)
    # Outside of `try`: ranks that make more collective calls than others wait forever.
    written = case.job.broadcast(written)
    if written != Path() and not (written / "complete").exists():
        yield Finding(
            f"seen from {platform.node()}",
            f"the file that the first rank wrote to {place} is not visible here; runs need a file "
            "system that all hosts share",
            Level.PROBLEM,
        )
    case.job.barrier()
    if case.job.is_first and written != Path():
        shutil.rmtree(written, ignore_errors=True)


def _write(place: Path) -> Path:
    folder = Path(mkdtemp(prefix=".dynapipe-hpc-", dir=place))
    try:
        (folder / "beside").write_bytes(_BLOCK)
        (folder / "beside").replace(folder / "complete")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def check_config(case: Case) -> Iterator[Finding]:
    """The checks at the start of a run, then memory; on the first rank only."""
    if not case.job.is_first or case.path is None:
        return
    if case.files is None:
        yield Finding("file", case.error, Level.PROBLEM)
        return
    files, n_ranks = case.files, case.job.size
    yield Finding("file", f"{case.path}: can be used")
    results = {name: _checked(name, partial(c, files, n_ranks)) for name, c in RUN_CHECKS.items()}
    yield from results.values()
    if not _is_problem(results["costs"]):
        yield from _circumstances(files, n_ranks)
    if any(_is_problem(results[name]) for name in ("iterations", "dataset", "evaluation", "costs")):
        return
    yield _checked("memory", partial(_check_longest_sample, files.open()))


def _circumstances(files: Experiment, n_ranks: int) -> Iterator[Finding]:
    try:
        warnings = cost_warnings(files, circumstances_here(files.config, n_ranks))
    except InputError as error:
        yield Finding("costs", str(error), Level.PROBLEM)
        return
    yield from (Finding("predictions", warning, Level.WARNING) for warning in warnings)


def _is_problem(finding: Finding) -> bool:
    return finding.level is Level.PROBLEM


def _checked(subject: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, check())
    except (InputError, OSError) as error:
        return Finding(subject, str(error), Level.PROBLEM)


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
    "one-sided access": check_access,
    "software": check_software,
    "hosts": check_host,
    "run folder": check_folder,
    "configuration": check_config,
}
