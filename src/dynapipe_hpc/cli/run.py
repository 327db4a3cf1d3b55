"""`dynapipe-hpc run`: trains according to a configuration."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_config_arguments
from dynapipe_hpc.cli.help_text import examples


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "run",
        help="train; start it with mpiexec or srun, one process per rank",
        description="Trains according to CONFIG, with one MPI rank per shard, stage and replica.",
        epilog=examples(
            "mpiexec -n 4 dynapipe-hpc run configs/tiny_cpu.toml -o runs/tiny",
            "srun dynapipe-hpc run configs/tiny_cpu.toml -o runs/2 --set training.seed=2",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=_folder,
        required=True,
        help="run folder; a run with checkpoints resumes from the newest",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains; the run folder holds the result."""
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        # After MPI, whose checks of the launcher come before anything large is loaded.
        from dynapipe_hpc.experiment.run.start import start_experiment

        experiment = start_experiment(job, arguments.config, arguments.overrides)
        # Loads torch only after every check that does not need it.
        from dynapipe_hpc.experiment.run.run import run_experiment

        return run_experiment(job, experiment, arguments.output)


def _folder(name: str) -> Path:
    # `Path("")` is the current folder.
    if not name:
        raise argparse.ArgumentTypeError("is empty; name a folder")
    return Path(name)
