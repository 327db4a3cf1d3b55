"""Verbs about plans and what they are made from: config, init, profile, plan and predictions."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dynapipe_hpc.cli.verb import (
    BATCHES,
    CONFIG,
    FORCE,
    SET,
    number,
    open_ranks,
    option,
    output,
    say,
    switch,
    verb,
)
from dynapipe_hpc.data.atomic_write import check_output
from dynapipe_hpc.data.errors import InputError

if TYPE_CHECKING:
    from dynapipe_hpc.experiment.experiment import Experiment


@verb(
    "describe the keys of a configuration",
    "Prints keys with default, type, limits and description: all keys, a table's keys, or one.",
    option("key KEY", "a table or key (default: all tables)", str, nargs="?", default=""),
)
def config(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.config_keys import describe_keys

    say(describe_keys(arguments.key))
    return 0


@verb(
    "write a first configuration for a dataset",
    "Writes a commented configuration for DATASET on N ranks, with the dataset's lengths and "
    "vocabulary, and a division of the model over ranks that fits their memory, checked by "
    "planning the first iteration.",
    option("dataset DATASET", "dataset (HDF5)"),
    number("--ranks N", "number of ranks", 1, 2**20, required=True),
    option(
        "--memory SIZE",
        "memory that one rank may use (cluster.device_memory_bytes), such as 76GB",
        str,
        required=True,
    ),
    option("--model FOLDER", "model, checkpoint or run to start from"),
    output("FILE", "configuration to write", required=True),
)
def init(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.study.propose import Wish, propose

    wish = Wish(arguments.dataset, arguments.ranks, arguments.memory, arguments.model)
    cluster = propose(wish, arguments.output)
    say(
        f"{arguments.output}: {cluster.n_replicas} replicas x {cluster.n_stages} stages x "
        f"{cluster.n_shards} shards; see dynapipe-hpc plan {arguments.output} --explain"
    )
    return 0


@verb(
    "measure what layers cost; start it with mpiexec, like the run",
    "Measures time and memory of the layers of CONFIG on this machine, and writes the cost table "
    "that planner.cost.path names. With as many ranks as the run, it also measures transfers, "
    "all-reduces and how much ranks slow each other down.",
    CONFIG,
    SET,
    output("TABLE.h5", "the cost table", required=True),
    FORCE,
    option(
        "--microbatch-tokens N",
        "largest micro-batch to measure, in padded tokens; default: a replica's share of a global "
        "batch, cut into two micro-batches per stage, but at least the longest row",
        int,
    ),
)
def profile(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.checks import check_profile, check_torch
    from dynapipe_hpc.experiment.experiment import Experiment
    from dynapipe_hpc.experiment.load import load_config
    from dynapipe_hpc.experiment.profile.grid import ProfileGrid
    from dynapipe_hpc.job.job import open_job
    from dynapipe_hpc.planner.cost.table.profile_file import read_table
    from dynapipe_hpc.planner.cost.table.profile_table import describe_table

    output: Path = arguments.output
    with open_job() as job:
        with job.fail_together():
            config = load_config(arguments.config, arguments.overrides)
            grid = ProfileGrid.from_config(config, arguments.microbatch_tokens)
            check_profile(Experiment(config), job.size)
            if job.is_first:
                check_output(output, [arguments.config], arguments.force)
            check_torch()
        # Loads torch only after every check that does not need it.
        from dynapipe_hpc.experiment.profile.profile import write_costs

        with share_progress("profile", shown=job.is_first) as on_progress:
            write_costs(job, config, grid, output, on_progress=on_progress)
        if job.is_first:
            say(describe_table(read_table(output), output))
    return 0


def _files(arguments: argparse.Namespace) -> "Experiment":
    from dynapipe_hpc.experiment.experiment import Experiment
    from dynapipe_hpc.experiment.load import load_config, with_cost_table

    config = load_config(arguments.config, arguments.overrides)
    profile = getattr(arguments, "profile", None)
    return Experiment(config if profile is None else with_cost_table(config, profile))


_PROFILE = option(
    "--profile TABLE",
    "cost table to use instead of the one in CONFIG (HDF5, or CSV of DynaPipe's authors)",
)


@verb(
    "show the plan of an iteration without running it",
    "Plans one iteration of CONFIG on this machine alone and prints it; or, with --lengths and "
    "--json, every batch of a file of sample lengths, without a dataset.",
    CONFIG,
    SET,
    number("--iteration K", "iteration, from 0 (default 0)", 0, default=0),
    switch("--explain", "list the alternatives and why this plan was chosen"),
    switch("--show", "draw the timeline, and say where the time goes"),
    option("--svg FILE.svg", "also write a drawing of the plan"),
    _PROFILE,
    option("--lengths FILE.json", "plan these batches; needs --json"),
    option("--json OUT.json", "file for the plans of --lengths"),
    FORCE,
)
def plan(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.show_plan import plan_lengths, show_plan

    one = (arguments.explain, arguments.iteration, arguments.show, arguments.svg)
    if (arguments.lengths is None) != (arguments.json is None):
        raise InputError("--lengths and --json belong together; give both or neither")
    if arguments.lengths is not None and any(one):
        raise InputError(
            "--explain, --iteration, --show and --svg cannot be used with --lengths; leave one out"
        )
    inputs = [arguments.config, *filter(None, [arguments.lengths])]
    for path in filter(None, (arguments.json, arguments.svg)):
        check_output(path, inputs, arguments.force)
    files = _files(arguments)
    if arguments.lengths is not None:
        say(plan_lengths(files, arguments.lengths, arguments.json))
        return 0
    experiment = files.open()
    if files.config.training.iterations is None:
        say(f"iterations: {files.describe_iterations()}")
    explain, iteration, drawn, svg = one
    say(show_plan(experiment, iteration, explain, timeline=drawn, svg=svg))
    return 0


@verb(
    "predict which batch rule and which parallel layout is fastest",
    "Plans the first batches of CONFIG with every batch rule at its best setting, for every way to "
    "divide the model over the ranks (replicas x stages x shards, ZeRO), and prints the "
    "predicted real tokens per second. It uses the dataset and the costs of CONFIG; nothing runs.",
    CONFIG,
    SET,
    BATCHES,
    _PROFILE,
)
def tune(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.experiment.study.predict import predict, variants
    from dynapipe_hpc.experiment.study.tables import describe
    from dynapipe_hpc.job.ranks import Alone

    files = _files(arguments)
    say(describe(predict(Alone(), files, list(variants(files.config)), arguments.batches)))
    return 0


@verb(
    "predict the best parallel layout and settings of several methods",
    "Plans the first batches of CONFIG by every method of its [study] table, and prints the best "
    "result of each method. It tries replicas, stages and shards in powers of two and, for "
    "baselines, every micro-batch size and mode of recomputation. Several ranks share the work. "
    "Nothing runs.",
    CONFIG,
    SET,
    BATCHES,
    output("GRID.csv", "CSV file of all grid points, with the reason for each that cannot run"),
    FORCE,
)
def grid_search(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.study.predict import grid, predict, write_grid
    from dynapipe_hpc.experiment.study.tables import describe

    with open_ranks() as ranks:
        with ranks.fail_together():
            files = _files(arguments)
            if ranks.is_first and arguments.output:
                check_output(arguments.output, [arguments.config], arguments.force)
            points = grid(files.config)
        with share_progress("grid-search", shown=ranks.is_first) as on_share:
            outcomes = predict(ranks, files, points, arguments.batches, on_share=on_share)
        if ranks.is_first:
            say(describe(outcomes, only_best=True))
        with ranks.fail_together():
            if ranks.is_first and arguments.output:
                write_grid(arguments.output, outcomes)
    return 0


@verb(
    "predict complete runs by several methods, without running them",
    "Plans every iteration of CONFIG by every method of its [study] table, using its costs, and "
    "prints predictions. Several ranks share the iterations; the number of ranks changes nothing "
    "else.",
    CONFIG,
    SET,
    output("FOLDER", "folder of the results", required=True),
)
def simulate(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.study.simulate import simulate
    from dynapipe_hpc.experiment.study.tables import describe

    with open_ranks() as ranks:
        with ranks.fail_together():
            files = _files(arguments)
        with share_progress("simulate", shown=ranks.is_first) as on_share:
            outcomes = simulate(ranks, files, arguments.output, on_share)
        if ranks.is_first:
            say(describe(outcomes))
    return int(bool(outcomes) and all(outcome.reason for outcome in outcomes))
