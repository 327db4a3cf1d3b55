"""`dynapipe-hpc export`: turns a checkpoint into a Hugging Face model."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "export",
        help="turn a run or a checkpoint into a Hugging Face model",
        description=(
            "Writes the weights of a checkpoint as FOLDER, which transformers loads: safetensors, "
            "config.json, and the tokenizer files of the model with which the run began. Of a "
            "model with adapters (LoRA), writes the adapters as peft does, or, with --base, the "
            "model on which they were trained with the adapters merged into it."
        ),
        epilog=examples(
            "dynapipe-hpc export runs/tuned -o models/tuned",
            "dynapipe-hpc export runs/tuned/checkpoints/000400 -o models/400 --dtype bfloat16",
            "dynapipe-hpc export runs/lora -o models/merged --base models/llama",
        ),
    )
    parser.add_argument(
        "source", metavar="RUN", type=Path, help="run (its newest checkpoint) or checkpoint"
    )
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, required=True, help="folder to write"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "float64"),
        help="type of the weights (default: that in the model's config.json, or float32)",
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        type=Path,
        help="model (Hugging Face folder, run or checkpoint) to add the adapters of RUN to",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder."""
    from dynapipe_hpc.training.huggingface.export_model import export_model

    base = arguments.base
    exported = export_model(arguments.source, arguments.output, arguments.dtype, base)
    origin = exported.origin
    is_alone = origin.shape.lora is not None and base is None
    kind = "adapters for peft" if is_alone else f"as {origin.page.architecture}"
    print(escaped(f"{arguments.output}: {origin}, {kind}, in {exported.dtype}"))
    if exported.remark:
        print(escaped(f"{arguments.output}: {exported.remark}"))
    return 0
