"""The doctor, asked in a job of one rank."""

from pathlib import Path

from mpi4py import MPI

from dynapipe_hpc.experiment.doctor.examine import Case, examine
from dynapipe_hpc.job.job import Job

ALONE = Job(MPI.COMM_SELF)


def ask(folder: Path, *overrides: str, output: str = "runs") -> bool:
    """Whether the doctor finds no problem with `config.toml` of a folder."""
    config = folder / "config.toml"
    settings = ["training.device=cpu", *overrides]
    return examine(Case.from_arguments(ALONE, config, settings, folder / output))
