"""`dynapipe-hpc demo-corpus OUT.jsonl`: makes a demo corpus to try everything with."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.data.output_file import check_output


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "demo-corpus",
        help="make a corpus of instruction tasks to try everything with",
        description="Writes JSON lines of small tasks whose lengths are as uneven as in real data.",
        epilog=examples(
            "dynapipe-hpc demo-corpus corpus.jsonl --samples 4000 --seed 1",
            "dynapipe-hpc demo-corpus chat.jsonl --samples 4000 --chat",
        ),
    )
    parser.add_argument("output", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--samples", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=8192,
        metavar="B",
        help="longest sample in bytes (default 8192); no effect with --chat or --preferences",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--chat", action="store_true", help="make conversations (lists of messages) instead"
    )
    kinds.add_argument(
        "--preferences",
        action="store_true",
        help="make conversations with a right and a wrong last answer instead",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace OUT.jsonl if it is a demo corpus"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the corpus."""
    # Imported here, because other verbs do not need it.
    from dynapipe_hpc.data.demo.corpus import DEMO_CORPUS, write_demo_corpus

    check_output(arguments.output, [], DEMO_CORPUS, arguments.force)
    write_demo_corpus(
        arguments.output,
        arguments.samples,
        arguments.seed,
        arguments.max_bytes,
        chat=arguments.chat,
        preferences=arguments.preferences,
    )
    print(escaped(f"{arguments.output}: {arguments.samples:,} samples"))
    return 0
