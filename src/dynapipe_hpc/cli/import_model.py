"""`dynapipe-hpc import`: turns a Hugging Face model into a checkpoint."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "import",
        help="turn a Hugging Face model into a checkpoint",
        description=(
            "Writes the weights of FOLDER (config.json and safetensors) as a checkpoint with which "
            "runs can begin (model.init_from). Its tokenizer files are copied along."
        ),
        epilog=examples("dynapipe-hpc import models/gpt2 -o imports/gpt2"),
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Hugging Face model")
    parser.add_argument(
        "-o", "--output", metavar="CHECKPOINT", type=Path, required=True, help="checkpoint to write"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the checkpoint."""
    from dynapipe_hpc.training.huggingface.import_model import import_model

    origin = import_model(arguments.folder, arguments.output)
    print(escaped(f"{arguments.output}: {origin}, family {origin.shape.family}"))
    return 0
