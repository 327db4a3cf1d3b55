"""`dynapipe-hpc watch RUN`: shows a run while it executes."""

import argparse
import sys
import time
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, printable

_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "watch",
        help="show progress, numbers and ranks of a run while it executes",
        description=(
            "Shows a run from its run folder alone, in any terminal that sees it, and again every "
            "few seconds until Ctrl-C; the run itself is not affected. Without a terminal it is "
            "printed once."
        ),
        epilog=examples("dynapipe-hpc watch runs/tiny", "dynapipe-hpc watch runs/tiny --every 10"),
    )
    parser.add_argument("folder", metavar="RUN", type=Path, help="folder of a run")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=float,
        default=2.0,
        help="refresh interval in seconds (default 2)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the view once, or until Ctrl-C."""
    from dynapipe_hpc.experiment.run.live_view import live_view

    if not 0.1 <= arguments.every <= 3600:
        raise InputError(f"--every {arguments.every:g}: must be 0.1 to 3600 seconds")
    shown = [printable(line) for line in live_view(arguments.folder)]
    if not sys.stdout.isatty():
        print("\n".join(shown))
        return 0
    sys.stdout.write(_OTHER_SCREEN)
    try:
        while True:
            text = "".join(f"{line}{_TO_END_OF_LINE}\n" for line in shown)
            sys.stdout.write(f"{_HOME}{text}{_TO_END}")
            sys.stdout.flush()
            time.sleep(arguments.every)
            shown = [printable(line) for line in live_view(arguments.folder)]
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(_FIRST_SCREEN)
        print("\n".join(shown))
