"""`dynapipe-hpc doctor [CONFIG]`: checks this machine for what would prevent a run."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_overrides
from dynapipe_hpc.cli.help_text import examples


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "doctor",
        help="check that a run would work here; launch it exactly like the run",
        description=(
            "Checks launcher, MPI, one-sided access between all ranks, software, devices, memory "
            "and the run folder, and whether CONFIG fits them and an earlier run in the folder, "
            "which is left as it is. Prints one fact per line, and for each problem how to fix "
            "it. Exits with 2 if there is a problem, 0 otherwise."
        ),
        epilog=examples(
            "dynapipe-hpc doctor",
            "mpiexec -n 4 dynapipe-hpc doctor configs/tiny_cpu.toml -o runs/tiny",
        ),
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, nargs="?", help="configuration file")
    add_overrides(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        help="run folder, new or to continue (default: a new one in runs)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings; the exit code is 2 if there is a problem."""
    from dynapipe_hpc.experiment.doctor.case import Case
    from dynapipe_hpc.experiment.doctor.examine import examine
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        case = Case.of(job, arguments.config, arguments.overrides, arguments.output)
        is_well = examine(case)
        case.close()
        return 0 if is_well else 2
