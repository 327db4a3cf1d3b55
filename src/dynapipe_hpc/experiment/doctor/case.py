"""What is examined."""

from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and what it is to do.

    Attributes:
        job: The ranks.
        on_host: Those of them that share this rank's host.
        output: The run folder; None if none is named.
        path: The configuration; None to look at the machine alone.
        files: The files of the experiment; None without a configuration that can be used.
        error: Why it cannot be used.
    """

    job: Job
    on_host: Job
    output: Path | None = None
    path: Path | None = None
    files: ExperimentFiles | None = None
    error: str = ""

    @classmethod
    def of(cls, job: Job, path: Path | None, overrides: list[str], output: Path | None) -> "Case":
        """Reads the configuration, if there is one; all ranks together."""
        case = cls(job, job.on_this_host(), output)
        if path is None:
            return case
        try:
            files = ExperimentFiles(load_config(path, overrides))
        except InputError as error:
            return cls(job, case.on_host, output, path, error=str(error))
        return cls(job, case.on_host, output, path, files)

    @property
    def config(self) -> ExperimentConfig | None:
        """The configuration; None without one that can be used."""
        return self.files.config if self.files else None

    @property
    def folder(self) -> Path:
        """Where a run would write: the run folder, or the one that usually holds them."""
        return self.output or Path("runs")

    @property
    def ranks_of_host(self) -> list[int]:
        """The ranks of the job that share this rank's host; the host's ranks together."""
        return self.on_host.numbers_of_all(self.job.rank)
