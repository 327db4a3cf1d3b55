"""`dynapipe-hpc tune`: predicts which variant of an experiment is fastest."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.config_arguments import add_config_arguments
from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "tune",
        help="predict which batch rule and which parallel layout is fastest",
        description=(
            "Plans the first batches of CONFIG by every batch rule, each at its best setting, on "
            "every division of the model over as many ranks (replicas x stages x shards, ZeRO), "
            "and prints the predicted real tokens per second. It uses the dataset and the costs of "
            "CONFIG; nothing runs."
        ),
        epilog=examples(
            "dynapipe-hpc tune configs/tiny_cpu.toml",
            "dynapipe-hpc tune configs/tiny_cpu.toml --batches 20 --set cluster.n_replicas=4",
        ),
    )
    add_config_arguments(parser)
    parser.add_argument(
        "--batches", metavar="N", type=int, default=5, help="global batches to plan (default 5)"
    )
    parser.add_argument("--profile", metavar="TABLE", type=Path, help="cost table to use instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, fastest first."""
    from dynapipe_hpc.experiment.files import ExperimentFiles
    from dynapipe_hpc.experiment.load import load_config, with_cost_table
    from dynapipe_hpc.experiment.study.describe_outcomes import describe_tuning
    from dynapipe_hpc.experiment.study.predict import predict
    from dynapipe_hpc.experiment.study.variants import variants

    if arguments.batches < 1:
        raise InputError(f"--batches {arguments.batches}: at least one batch is needed")
    config = load_config(arguments.config, arguments.overrides)
    if arguments.profile is not None:
        config = with_cost_table(config, arguments.profile)
    outcomes = list(predict(ExperimentFiles(config), variants(config), arguments.batches))
    for line in describe_tuning(outcomes):
        print(escaped(line))
    return 0
