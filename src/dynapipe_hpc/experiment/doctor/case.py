"""The case that the doctor examines."""

from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and the experiment that it is to run.

    Attributes:
        job: The ranks.
        on_host: Ranks of the job on this rank's host.
        output: The run folder; None if none is named.
        path: The configuration; None to examine only the machine.
        files: The files of the experiment; None without a usable configuration.
        error: Reason why the configuration cannot be used; empty if it can.
    """

    job: Job
    on_host: Job
    output: Path | None = None
    path: Path | None = None
    files: ExperimentFiles | None = None
    error: str = ""

    @classmethod
    def from_arguments(
        cls, job: Job, path: Path | None, overrides: list[str], output: Path | None
    ) -> "Case":
        """Reads the configuration, if there is one; all ranks together."""
        case = cls(job, job.on_this_host(), output)
        if path is None:
            return case
        try:
            files = ExperimentFiles(load_config(path, overrides))
        except InputError as error:
            return cls(job, case.on_host, output, path, error=str(error))
        return cls(job, case.on_host, output, path, files)

    def close(self) -> None:
        """Frees the communicator of the host's ranks; all ranks together."""
        self.on_host.free()

    @property
    def config(self) -> ExperimentConfig | None:
        """The configuration; None without a usable one."""
        return self.files.config if self.files else None

    @property
    def folder(self) -> Path:
        """The folder where a run would write: the run folder, or else `runs`."""
        return self.output or Path("runs")

    @property
    def ranks_of_host(self) -> list[int]:
        """Ranks of the job on this rank's host (collective over the host's ranks)."""
        return self.on_host.all_gather_int(self.job.rank)
