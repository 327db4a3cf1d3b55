"""Command-line arguments of every verb that reads a configuration."""

import argparse
from pathlib import Path


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments CONFIG and --set to a parser."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="configuration file (TOML)")
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Adds the argument --set to a parser."""
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        action="append",
        default=[],
        help="replace one value of the configuration; may be given several times",
    )
