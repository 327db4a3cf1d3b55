"""The log of a run on every rank: the first one writes it."""

from pathlib import Path

from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.host_device import HostDevice
from dynapipe_hpc.experiment.run.quiet_period import QuietPeriod
from dynapipe_hpc.experiment.run.run_log import RunLog
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.report.evaluation_record import EvaluationRecord
from dynapipe_hpc.report.mixture_file import write_mixture


class SilentLog:
    """The log on other ranks than the first, in place of `RunLog`: none of them writes."""

    def add(self, *_: object) -> None:
        """Adds nothing."""

    def note(self, *_: object) -> None:
        """Prints nothing."""

    def print_line(self, _: str) -> None:
        """Prints nothing."""

    def add_evaluation(self, _: EvaluationRecord, *, is_best: bool) -> None:
        """Adds nothing."""

    def flush(self) -> None:
        """Waits for nothing."""

    def close(self) -> None:
        """Closes nothing."""


Log = RunLog | SilentLog


def open_log(
    job: Job,
    experiment: Experiment,
    output: Path,
    first_iteration: int,
    *,
    host: HostDevice,
    lock: RunLock,
    quiet_period: QuietPeriod,
) -> Log:
    """Creates a run folder, or continues one; all ranks together, and the first writes.

    Args:
        job: The ranks.
        experiment: The experiment.
        output: The run folder.
        first_iteration: First iteration that is left.
        host: Kind of device of this host, on the first rank.
        lock: Lock on the folder.
        quiet_period: Time between iterations, in which nothing is written.

    Raises:
        SystemExit: The folder cannot be written; the first rank has said why.
    """
    log: Log = SilentLog()
    with job.fail_together():
        if job.is_first:
            log = RunLog(
                experiment.config,
                experiment.placement,
                output,
                machine=machine_facts(job.size) | host.facts,
                n_done=first_iteration,
                lock=lock,
                quiet_period=quiet_period,
            )
            write_mixture(output, experiment.mixture)
    return log
