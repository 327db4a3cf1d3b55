"""`dynapipe-hpc config`: describes the keys of a configuration."""

import argparse

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "config",
        help="describe the keys of a configuration",
        description=(
            "Prints the keys of a configuration with default, type, limits and unit: all, those of "
            "a table, or one key with its whole description."
        ),
        epilog=examples(
            "dynapipe-hpc config planner.cost",
            "dynapipe-hpc config cluster.device_memory_bytes",
            "dynapipe-hpc config --schema",
        ),
    )
    parser.add_argument(
        "key", metavar="KEY", nargs="?", default="", help="a table or key (default: all tables)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--schema", action="store_true", help="print a JSON Schema, for editors")
    form.add_argument("--markdown", action="store_true", help="print the reference as a page")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the description."""
    import json

    from dynapipe_hpc.experiment.explain.describe_keys import (
        config_page,
        describe_keys,
        editor_schema,
    )

    if arguments.key and (arguments.schema or arguments.markdown):
        raise InputError(f"KEY '{arguments.key}' cannot be combined with --schema or --markdown")
    if arguments.schema:
        print(json.dumps(editor_schema(), indent=2))
    elif arguments.markdown:
        print(config_page(), end="")
    else:
        for line in describe_keys(arguments.key):
            print(escaped(line))
    return 0
