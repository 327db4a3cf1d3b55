"""`dynapipe-hpc grid-search`: predicts the best configuration of every method."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_config_arguments
from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.cli.open_ranks import open_ranks
from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.output_file import check_output


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "grid-search",
        help="predict the best parallel layout and settings of each of several methods",
        description=(
            "Plans the first batches of CONFIG by every method of its [study] table, with "
            "replicas, stages and shards in powers of two, and baselines with every micro-batch "
            "size and mode of recomputation, and prints the best of each. Several ranks share the "
            "points. Nothing runs; --runs writes the best points for a job array that runs them."
        ),
        epilog=examples(
            "dynapipe-hpc grid-search configs/studies/packing.toml -o grid.csv",
            "mpiexec -n 8 dynapipe-hpc grid-search configs/studies/packing.toml -o grid.csv",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--batches", metavar="N", type=int, default=5, help="global batches to plan (default 5)"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="GRID.csv",
        type=Path,
        help="CSV file of all grid points, with the reason for each that cannot run",
    )
    parser.add_argument(
        "--runs",
        metavar="FOLDER",
        type=Path,
        help="new folder for configurations of the best points, and their list variants.txt",
    )
    parser.add_argument(
        "--best", metavar="N", type=int, help="points per method in --runs (default 3)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Searches, and prints a table."""
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.files import ExperimentFiles
    from dynapipe_hpc.experiment.load import load_config
    from dynapipe_hpc.experiment.study.describe_outcomes import describe_grid
    from dynapipe_hpc.experiment.study.grid_search import (
        GRID,
        VARIANTS,
        check_runs,
        grid_search,
        write_grid,
        write_runs,
    )

    if arguments.batches < 1:
        raise InputError(f"--batches {arguments.batches}: at least one batch is needed")
    if arguments.best is not None and not arguments.runs:
        raise InputError("--best is used with --runs only; name a folder, or leave it out")
    n_best = 3 if arguments.best is None else arguments.best
    if n_best < 1:
        raise InputError(f"--best {n_best}: at least one point is needed")
    with open_ranks() as ranks:
        with ranks.fail_together():
            files = ExperimentFiles(load_config(arguments.config, arguments.overrides))
            if ranks.is_first and arguments.output:
                # They can be made again.
                check_output(arguments.output, [arguments.config], GRID, force=True)
            if arguments.runs:
                check_runs(arguments.runs, files.config)
        with share_progress("grid-search", shown=ranks.is_first) as on_share:
            outcomes = grid_search(ranks, files, arguments.batches, on_share)
        if ranks.is_first:
            for line in describe_grid(outcomes):
                print(escaped(line))
        with ranks.fail_together():
            if ranks.is_first and arguments.output:
                write_grid(arguments.output, outcomes)
            if ranks.is_first and arguments.runs:
                chosen = write_runs(arguments.runs, files.config, outcomes, n_best)
                variants = escaped(str(arguments.runs / VARIANTS))
                print(f"{variants}: {len(chosen)} runs, for slurm/grid_search.sbatch")
    return 0
