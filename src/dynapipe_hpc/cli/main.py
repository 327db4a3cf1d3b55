"""The command `dynapipe-hpc`: all verbs."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, cast

from dynapipe_hpc import __version__
from dynapipe_hpc.cli import data_verbs, plan_verbs, run_verbs
from dynapipe_hpc.data.errors import InputError, RunError, print_error, printable
from dynapipe_hpc.data.extras import optional_packages

VERBS = (
    run_verbs.doctor,
    run_verbs.finetune,
    data_verbs.preprocess,
    data_verbs.inspect,
    plan_verbs.init,
    plan_verbs.config,
    plan_verbs.profile,
    plan_verbs.plan,
    plan_verbs.tune,
    plan_verbs.grid_search,
    plan_verbs.simulate,
    run_verbs.run,
    run_verbs.explain,
    run_verbs.report,
    data_verbs.import_,
    data_verbs.export,
    data_verbs.generate,
    data_verbs.demo_corpus,
    run_verbs.slurm_scripts,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; 0 if done, 1 if the run failed, 2 if the input is wrong."""
    parsed = make_parser().parse_args(arguments)
    if arguments is None and sys.argv[1] == "preprocess":
        # Otherwise transformers loads it, in a second and 190 MB; text does not need it.
        cast("dict[str, object]", sys.modules)["torch"] = None
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may not be valid text, and a terminal may not know all letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with optional_packages():
            return int(parsed.run(parsed))
    except InputError as error:
        code, message = 2, str(error)
    except RunError as error:
        code, message = 1, str(error)
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except BrokenPipeError:
        # The reader of our output has closed it (`| head`), but Python still flushes stdout at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print_error(message)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the usage and an escaped error message, and exits with code 2."""
        super().error(printable(message))


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dynapipe-hpc",
        description="Trains language models on samples of very different lengths.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(verbs)
    return parser
