"""`dynapipe-hpc profile`: measures a cost table on this machine, or imports one."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_config_arguments
from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped
from dynapipe_hpc.data.output_file import check_output

REPETITION_S = 18.0


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "profile",
        help="measure what layers cost; start it with mpiexec, like the run",
        description=(
            "Measures time and memory of the layers of CONFIG on this machine, and writes the "
            "cost table that planner.cost.path names. With as many ranks as the run, it also "
            "measures transfers, all-reduces and how much ranks slow each other down. Completes a "
            "TABLE.h5 that was interrupted or lacks modes of planner.cost.recompute."
        ),
        epilog=examples(
            "mpiexec -n 4 dynapipe-hpc profile configs/tiny_cpu.toml -o costs.h5",
            "dynapipe-hpc profile configs/tiny_cpu.toml -o costs.h5 --from-csv measured.csv",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="TABLE.h5", type=Path, required=True, help="the cost table"
    )
    parser.add_argument(
        "--force", action="store_true", help="measure everything again if TABLE.h5 is a cost table"
    )
    parser.add_argument(
        "--microbatch-tokens",
        metavar="N",
        type=int,
        help="largest micro-batch to measure, in padded tokens; default: a replica's share of a "
        "global batch in two micro-batches per stage, but at least the longest row",
    )
    parser.add_argument(
        "--from-csv",
        metavar="PROFILE.csv",
        type=Path,
        help="import measurements of the model of CONFIG instead, in the paper's CSV format",
    )
    parser.add_argument(
        "--parameters",
        metavar="PARAMETERS.csv",
        type=Path,
        help="sizes of weights for --from-csv; default: PROFILE_parameters.csv in its folder",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the cost table and prints a description of it."""
    if arguments.parameters and not arguments.from_csv:
        raise InputError("--parameters is used with --from-csv only; name both, or leave it out")
    if arguments.microbatch_tokens is not None and arguments.from_csv:
        raise InputError("--microbatch-tokens is used without --from-csv only; leave out one")
    return _measure(arguments) if arguments.from_csv is None else _import(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.check_torch import check_torch
    from dynapipe_hpc.experiment.checks import check_profile
    from dynapipe_hpc.experiment.files import ExperimentFiles
    from dynapipe_hpc.experiment.load import load_config
    from dynapipe_hpc.experiment.profile.grid import ProfileGrid
    from dynapipe_hpc.job.job import open_job
    from dynapipe_hpc.planner.cost.table.describe_table import describe_table
    from dynapipe_hpc.planner.cost.table.profile_file import TABLE, read_table, write_table

    output: Path = arguments.output
    with open_job() as job:
        with job.fail_together():
            config = load_config(arguments.config, arguments.overrides)
            grid = ProfileGrid.from_config(config, arguments.microbatch_tokens)
            check_profile(ExperimentFiles(config), job.size)
            if job.is_first:
                check_output(output, [arguments.config], TABLE, force=True)
        with job.fail_together():
            check_torch()
        # Loads torch only after every check that does not need it.
        from dynapipe_hpc.experiment.profile.begun_table import begun_table
        from dynapipe_hpc.experiment.profile.profile import profile
        from dynapipe_hpc.experiment.rank.host_device import find_host_device, slices_obstacle

        begun, obstacle = None, ""
        with job.fail_together():
            if job.is_first:
                obstacle = slices_obstacle(config, find_host_device(config))
        # All ranks measure the same.
        if job.broadcast(obstacle):
            config = config.without_slices()
        with job.fail_together():
            if job.is_first and not arguments.force:
                begun = begun_table(output, config, grid, job.size)
        with share_progress("profile", shown=job.is_first) as on_progress:
            for table in profile(
                job,
                config,
                grid,
                repetition_s=REPETITION_S,
                on_progress=on_progress,
                begun=begun,
                beside=output,
            ):
                with job.fail_together():
                    if table is not None:
                        write_table(table, output)
        if job.is_first:
            print(escaped(describe_table(read_table(output), output)))
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.load import load_config
    from dynapipe_hpc.planner.cost.table.describe_table import describe_table
    from dynapipe_hpc.planner.cost.table.import_csv import import_csv
    from dynapipe_hpc.planner.cost.table.load_table import parameters_beside
    from dynapipe_hpc.planner.cost.table.profile_file import TABLE, write_table

    config = load_config(arguments.config, arguments.overrides)
    profiles: Path = arguments.from_csv
    parameters: Path = arguments.parameters or parameters_beside(profiles)
    inputs = [arguments.config, profiles, parameters]
    check_output(arguments.output, inputs, TABLE, arguments.force)
    table = import_csv(profiles, parameters, config.model)
    write_table(table, arguments.output)
    print(escaped(describe_table(table, arguments.output)))
    return 0
