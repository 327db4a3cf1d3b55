"""`dynapipe-hpc simulate`: plans whole runs by several methods, without executing them."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_config_arguments
from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.cli.open_ranks import open_ranks
from dynapipe_hpc.data.errors import escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "simulate",
        help="predict whole runs by several methods, without running them",
        description=(
            "Plans every iteration of CONFIG by every method of its [study] table, from its costs, "
            "and prints what is predicted. Several ranks share the iterations; the number of ranks "
            "changes nothing else. Start the same command again to continue after an interruption."
        ),
        epilog=examples(
            "dynapipe-hpc simulate configs/studies/packing.toml -o studies/packing",
            "mpiexec -n 8 dynapipe-hpc simulate configs/studies/packing.toml -o studies/packing",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, required=True, help="folder of the results"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Simulates, and prints a table."""
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.files import ExperimentFiles
    from dynapipe_hpc.experiment.load import load_config
    from dynapipe_hpc.experiment.study.describe_simulation import describe_simulation
    from dynapipe_hpc.experiment.study.simulate import simulate

    with open_ranks() as ranks:
        with ranks.fail_together():
            files = ExperimentFiles(load_config(arguments.config, arguments.overrides))
        with share_progress("simulate", shown=ranks.is_first) as on_share:
            planned = simulate(ranks, files, arguments.output, on_share)
        if ranks.is_first:
            for line in describe_simulation(planned):
                print(escaped(line))
    return 0
