"""`dynapipe-hpc plan`: shows the plan of an iteration, or plans batches of lengths."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_config_arguments
from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "plan",
        help="show the plan of an iteration without running it",
        description=(
            "Plans one iteration of CONFIG on this machine alone and prints it; or, with "
            "--lengths and --json, every batch of a file of sample lengths, without a dataset."
        ),
        epilog=examples(
            "dynapipe-hpc plan configs/tiny_cpu.toml --iteration 3 --explain",
            "dynapipe-hpc plan configs/tiny_cpu.toml --show --html plan.html",
            "dynapipe-hpc plan configs/tiny_cpu.toml --lengths lengths.json --json plans.json",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--iteration", metavar="K", type=int, default=0, help="iteration, from 0 (default 0)"
    )
    parser.add_argument(
        "--explain", action="store_true", help="list the alternatives and why this plan was chosen"
    )
    parser.add_argument(
        "--show", action="store_true", help="draw the timeline, and say what its time goes into"
    )
    parser.add_argument(
        "--svg", metavar="FILE.svg", type=Path, help="also write a drawing of the plan"
    )
    parser.add_argument(
        "--html",
        metavar="FILE.html",
        type=Path,
        help="also write a page: drawing, reasons, micro-batches",
    )
    parser.add_argument(
        "--profile",
        metavar="TABLE",
        type=Path,
        help="cost table to use instead (HDF5, or CSV as for profile --from-csv)",
    )
    parser.add_argument(
        "--lengths", metavar="FILE.json", type=Path, help="plan these batches; needs --json"
    )
    parser.add_argument(
        "--json", metavar="OUT.json", type=Path, help="file for the plans of --lengths"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints micro-batches, prediction and instructions; with --lengths, a line per batch."""
    from dynapipe_hpc.experiment.experiment import open_experiment
    from dynapipe_hpc.experiment.explain.plan_lengths import plan_lengths
    from dynapipe_hpc.experiment.explain.show_plan import show_plan
    from dynapipe_hpc.experiment.files import ExperimentFiles
    from dynapipe_hpc.experiment.load import load_config, with_cost_table

    _check(arguments)
    config = load_config(arguments.config, arguments.overrides)
    if arguments.profile is not None:
        config = with_cost_table(config, arguments.profile)
    files = ExperimentFiles(config)
    if arguments.lengths is None:
        experiment = open_experiment(files)
        if config.training.iterations is None:
            print(escaped(f"iterations: {files.describe_iterations()}"))
        iteration, explain = arguments.iteration, arguments.explain
        shown = show_plan(
            experiment,
            iteration,
            explain,
            timeline=arguments.show,
            svg=arguments.svg,
            html=arguments.html,
        )
        print(escaped(shown))
        return 0
    for line in plan_lengths(files, arguments.lengths, arguments.json):
        print(escaped(line))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.iteration < 0:
        raise InputError(f"--iteration {arguments.iteration}: iterations count from 0")
    if (arguments.lengths is None) != (arguments.json is None):
        raise InputError("--lengths and --json belong together; give both or neither")
    drawn = (arguments.show, arguments.svg, arguments.html)
    of_one = (arguments.explain, arguments.iteration, *drawn)
    if arguments.lengths is not None and any(of_one):
        raise InputError(
            "--explain, --iteration, --show, --svg and --html do not go with --lengths; "
            "leave one out"
        )
