"""`dynapipe-hpc explain RUN`: says how a run ended."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import printable


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "explain",
        help="say how a run ended, how far it came and what to try next",
        description=(
            "Says from the run folder alone what ended a run (its last message, a signal, a kill), "
            "or that it still runs; which iteration and checkpoint were the last; and what to "
            "try next."
        ),
        epilog=examples("dynapipe-hpc explain runs/tiny"),
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="folder of a run")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the explanation."""
    from dynapipe_hpc.experiment.run.explain_run import explain_run

    for line in explain_run(arguments.folder).splitlines():
        print(printable(line))
    return 0
