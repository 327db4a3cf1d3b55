"""`dynapipe-hpc slurm-scripts DIR`: copies batch scripts and example configurations."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "slurm-scripts",
        help="copy batch scripts and example configurations to start from",
        description=(
            "Copies the folders slurm and configs into DIR, to be changed and submitted from "
            "there, and the programs that slurm/smoke.sbatch runs. Never overwrites anything."
        ),
        epilog=examples("dynapipe-hpc slurm-scripts job", "dynapipe-hpc slurm-scripts ."),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder, new or existing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Copies the files."""
    from dynapipe_hpc.job.starter_files import copy_starter_files

    names = copy_starter_files(arguments.folder)
    print(escaped(f"{arguments.folder}: {', '.join(names)}; slurm/README.md says how to submit"))
    return 0
