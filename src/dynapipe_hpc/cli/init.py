"""`dynapipe-hpc init`: writes a first configuration for a dataset."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "init",
        help="write a first configuration for a dataset",
        description=(
            "Writes a commented configuration for DATASET on N ranks, with lengths and vocabulary "
            "of the dataset, and a division of the model over ranks that fits into their memory, "
            "as a plan of the first iteration has shown."
        ),
        epilog=examples(
            "dynapipe-hpc init data/demo.h5 --ranks 4 --memory 2GB -o first.toml",
            "dynapipe-hpc init data/chat.h5 --ranks 8 --memory 76GB --model models/gpt2 -o a.toml",
        ),
    )
    parser.add_argument("dataset", metavar="DATASET", type=Path, help="dataset (HDF5)")
    parser.add_argument("--ranks", metavar="N", type=int, required=True, help="number of ranks")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        required=True,
        help="memory that one rank may use (cluster.device_memory_bytes), such as 76GB",
    )
    parser.add_argument(
        "--model", metavar="FOLDER", type=Path, help="model, checkpoint or run to start from"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="configuration to write"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the file, and prints the division."""
    from dynapipe_hpc.experiment.study.propose import Wish, propose

    if not 1 <= arguments.ranks <= 2**20:
        raise InputError(f"--ranks {arguments.ranks}: must be from 1 to {2**20:,}")
    wish = Wish(arguments.dataset, arguments.ranks, arguments.memory, arguments.model)
    cluster = propose(wish, arguments.output)
    print(
        escaped(
            f"{arguments.output}: {cluster.n_replicas} replicas x {cluster.n_stages} stages x "
            f"{cluster.n_shards} shards; see dynapipe-hpc plan {arguments.output} --explain"
        )
    )
    return 0
