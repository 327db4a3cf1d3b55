"""`dynapipe-hpc generate`: shows what a model writes after a prompt."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "generate",
        help="show what a model writes after a prompt",
        description=(
            "Lets one process write text with the whole model of a checkpoint, to see that "
            "training worked."
        ),
        epilog=examples(
            "dynapipe-hpc generate runs/tuned --chat --prompt 'Name three rivers.'",
            "dynapipe-hpc generate runs/tuned --prompt Once --temperature 0.8 --top-p 0.9 --seed 3",
        ),
    )
    parser.add_argument(
        "model", metavar="MODEL", type=Path, help="run, checkpoint or Hugging Face model"
    )
    parser.add_argument("--prompt", metavar="TEXT", required=True, help="text to continue")
    parser.add_argument(
        "--chat",
        action="store_true",
        help="answer the prompt as a chat message, with the model's chat template",
    )
    parser.add_argument(
        "--tokens", metavar="N", type=int, default=64, help="most tokens to write (default 64)"
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=0.0,
        help="divisor of logits; 0, the default, takes the likeliest token",
    )
    parser.add_argument(
        "--top-p",
        metavar="P",
        type=float,
        default=1.0,
        help="choose among the likeliest tokens whose probabilities add up to P (default 1)",
    )
    parser.add_argument(
        "--seed", metavar="S", type=int, default=0, help="random seed of sampling (default 0)"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        action="append",
        default=[],
        type=Path,
        help="tokenizer, as for preprocess (default: that which belongs to the model)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the text."""
    _check(arguments)
    from dynapipe_hpc.training.generate import Sampling, generate

    sampling = Sampling(arguments.temperature, arguments.top_p, arguments.seed)
    text = generate(
        arguments.model,
        arguments.prompt,
        arguments.tokens,
        sampling,
        tokenizer_files=arguments.tokenizer,
        chat=arguments.chat,
    )
    print(escaped(text))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.tokens < 1:
        raise InputError(f"--tokens {arguments.tokens}: must be at least 1")
    if not 0 <= arguments.temperature < float("inf"):
        raise InputError(f"--temperature {arguments.temperature}: must be finite and at least 0")
    if not 0 < arguments.top_p <= 1:
        raise InputError(f"--top-p {arguments.top_p}: must be above 0 and at most 1")
    if not 0 <= arguments.seed < 2**63:
        raise InputError(f"--seed {arguments.seed}: must be from 0 to 2^63 - 1")
