"""The examination of a job, section by section: its machine, the run folder, a configuration."""

import platform
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from dynapipe_hpc.data.errors import InputError, escaped, print_error
from dynapipe_hpc.experiment.checks import RUN_CHECKS, cost_warnings, describe_halves
from dynapipe_hpc.experiment.doctor.check_machine import (
    check_access,
    check_host,
    check_launch,
    check_network,
    check_software,
    circumstances_here,
)
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level, lines, merged
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.reference_pass import describe_reference
from dynapipe_hpc.experiment.run_lock import writer_of
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.memory import activation_bytes, misfit_error
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.store.plan_store import too_large_error

_BLOCK = bytes(1 << 20)
_LITTLE_BYTES = 1e9
_MAX_S = 120.0


def examine(case: Case) -> bool:
    """Prints all findings, section by section; whether nothing prevents a run (collective)."""
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
    # Outside of `try`: ranks that meet more often than others wait forever.
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
        yield _free(place)
        yield from _lock(case.folder)


def _write(place: Path) -> Path:
    folder = Path(mkdtemp(prefix=".dynapipe-hpc-", dir=place))
    try:
        (folder / "beside").write_bytes(_BLOCK)
        (folder / "beside").replace(folder / "complete")
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _free(place: Path) -> Finding:
    free_bytes = shutil.disk_usage(place).free
    text = f"{free_bytes / 1e9:.1f} GB free"
    if free_bytes >= _LITTLE_BYTES:
        return Finding("space", text)
    return Finding(
        "space", f"{text}; a run may fill the disk: free some space first", Level.WARNING
    )


def _lock(folder: Path) -> Iterator[Finding]:
    try:
        writer = writer_of(folder)
    except InputError as error:
        yield Finding("lock", str(error), Level.PROBLEM)
        return
    if writer is not None:
        # A holder on another host may be gone.
        level = Level.PROBLEM if writer.is_alive() else Level.WARNING
        text = (
            f"{folder}: locked by another run, {writer}; wait for its end, or name another folder"
        )
        yield Finding("lock", text, level)


def check_config(case: Case) -> Iterator[Finding]:
    """The checks at the start of a run, then memory and a first plan; on the first rank only."""
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
        if halves := describe_halves(files.costs, files.config):
            yield Finding("split passes", halves)
    if any(_is_problem(results[name]) for name in ("iterations", "dataset", "evaluation", "costs")):
        return
    memory = _checked("memory", partial(_check_longest_sample, files.open()))
    yield memory
    if _is_problem(memory):
        return
    yield _checked("first plan", partial(_check_first_plan, files))
    if files.config.training.preference_loss and not _is_problem(results["weights"]):
        yield _checked("reference", partial(describe_reference, files, case.folder))


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


def _check_first_plan(experiment: Experiment) -> str:
    plans = encode_plans(experiment.planner.make_plans(0, experiment.sampler.iteration(0)))
    largest, room = max(map(len, plans)), experiment.config.store.plan_bytes
    if largest > room:
        rank = [len(plan) for plan in plans].index(largest)
        raise InputError(str(too_large_error(0, rank, largest, room)))
    return f"{largest:,} bytes of store.plan_bytes = {room:,}"


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
    "network": check_network,
    "one-sided access": check_access,
    "software": check_software,
    "hosts": check_host,
    "run folder": check_folder,
    "configuration": check_config,
}
