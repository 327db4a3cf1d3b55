"""The examination of a machine, section by section."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.experiment.doctor.check_config import check_config
from dynapipe_hpc.experiment.doctor.check_folder import check_earlier_run, check_folder
from dynapipe_hpc.experiment.doctor.check_host import check_access, check_host
from dynapipe_hpc.experiment.doctor.check_launch import check_launch, check_mpi, check_network
from dynapipe_hpc.experiment.doctor.check_software import check_gpus, check_software
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level, lines, merged
from dynapipe_hpc.job.print_error import print_error

Look = Callable[[Case], Iterable[Finding]]

_SECTIONS: dict[str, Look] = {
    "launch": check_launch,
    "MPI": check_mpi,
    "network": check_network,
    "one-sided access": check_access,
    "software": check_software,
    "devices": check_gpus,
    "hosts": check_host,
    "run folder": check_folder,
    "configuration": check_config,
    "earlier run": check_earlier_run,
}
_MAX_S = 120.0
_READING = {"earlier run"}
"""Sections without a time limit, as reading checkpoints may take long."""


def examine(case: Case) -> bool:
    """Prints all findings, section by section; whether nothing prevents a run (collective)."""
    levels: Counter[Level] = Counter()
    for heading, look in _SECTIONS.items():
        with nullcontext() if heading in _READING else _ending(case, heading):
            findings = merged(case.job.gather(list(look(case))))
        levels.update(finding.level for finding in findings)
        if findings:
            print(escaped("\n".join(lines(heading, findings))), flush=True)
    if case.job.is_first:
        print(_verdict(levels), flush=True)
    return case.job.broadcast(not levels[Level.PROBLEM])


def _verdict(levels: Counter[Level]) -> str:
    problems, warnings = levels[Level.PROBLEM], levels[Level.WARNING]
    if not problems and not warnings:
        return "all is well"
    return f"problems: {problems}, warnings: {warnings}"


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
