"""The command `dynapipe-hpc`: one verb per file of this package."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dynapipe_hpc import __version__
from dynapipe_hpc.cli import demo_corpus, doctor, inspect, plan, preprocess, profile, report, run
from dynapipe_hpc.cli.help_text import HelpFormatter, examples
from dynapipe_hpc.data.errors import InputError, RunError, printable
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.job.say import say

VERBS = (doctor, preprocess, inspect, profile, plan, run, report, demo_corpus)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Returns:
        0 done, 1 the run failed, 2 wrong input; a user error is a message, not a traceback.
    """
    parsed = make_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name need not be text, and a terminal not know all letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with optional_packages():
            return int(parsed.run(parsed))
    except InputError as error:
        return _explain(str(error), 2)
    except RunError as error:
        return _explain(str(error), 1)
    except KeyboardInterrupt:
        return _explain("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has left (`| head`); what Python flushes at exit must go
        # somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """Whose messages a terminal can show; so are its verbs'."""

    def __init__(self, **options: Any) -> None:
        """Makes a parser whose help shows examples as they are."""
        super().__init__(formatter_class=HelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Explains how the verb is used."""
        super().error(printable(message))


def _explain(message: str, exit_code: int) -> int:
    say(message)
    return exit_code


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog="dynapipe-hpc",
        description="Trains language models on samples of very different lengths.",
        epilog=examples("dynapipe-hpc doctor", "dynapipe-hpc run --help"),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(verbs)
    return parser
