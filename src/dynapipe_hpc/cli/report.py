"""`dynapipe-hpc report`: compares runs in a table and on an HTML page."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.data.input_file import why_unreadable


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "report",
        help="compare runs: prints a table, writes figures and timelines as an HTML page",
        description="Prints the results of runs side by side and writes an HTML page.",
        epilog=examples(
            "dynapipe-hpc report runs/tiny",
            "dynapipe-hpc report runs/dense runs/dynamic --baseline dense -o comparison.html",
        ),
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of a run")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.html",
        type=Path,
        help="page to write (default: report.html in the run's folder, or next to the runs)",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="name of the run that the others are compared with (default: the first)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table and writes the page."""
    from dynapipe_hpc.report.comparison import compare, text_table
    from dynapipe_hpc.report.html import default_page, write_page
    from dynapipe_hpc.report.run_folder import RunFolder

    # `runs/*` also matches files next to the runs, such as an earlier report.
    folders = [path for path in arguments.runs if why_unreadable(path)]
    runs = [RunFolder.open(path) for path in folders or arguments.runs]
    comparison = compare(runs, arguments.baseline)
    print(escaped(text_table(comparison)))
    page = arguments.output or default_page(runs)
    write_page(runs, comparison, page)
    print(f"\nreport: {escaped(str(page))}")
    return 0
