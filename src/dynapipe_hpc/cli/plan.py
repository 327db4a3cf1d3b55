"""`dynapipe-hpc plan`: shows the plan of an iteration."""

import argparse

from dynapipe_hpc.cli.config_arguments import add_config_arguments


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "plan",
        help="show the plan of an iteration without running it",
        description="Plans one iteration of CONFIG on this machine alone and prints it.",
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--iteration", metavar="K", type=int, default=0, help="which one, from 0 (default 0)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints micro-batches, the grid of instructions and the prediction."""
    from dynapipe_hpc.experiment.load import load_config
    from dynapipe_hpc.experiment.show_plan import show_plan

    config = load_config(arguments.config, arguments.overrides)
    print(show_plan(config, arguments.iteration))
    return 0
