"""`dynapipe-hpc doctor [CONFIG]`: is this machine all right?"""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_overrides
from dynapipe_hpc.cli.help_text import examples


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "doctor",
        help="look for what would prevent a run here; start as a run would be",
        description=(
            "Looks at launcher, MPI, one-sided access between all ranks, software, devices, "
            "memory and the run folder, and whether CONFIG goes with them and with an earlier run "
            "in the folder, of which nothing is changed: a fact per line, and "
            "with a problem what to do about it. Exits with 2 if there is a problem, 0 otherwise."
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
    """Prints what is found."""
    from dynapipe_hpc.experiment.doctor.case import Case
    from dynapipe_hpc.experiment.doctor.examine import examine
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        case = Case.of(job, arguments.config, arguments.overrides, arguments.output)
        return 0 if examine(case) else 2
