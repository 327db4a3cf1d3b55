"""`dynapipe-hpc completion`: prints a script with which a shell completes commands."""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description=(
            "Prints a script that completes verbs, options and file names. Load it where your "
            "shell starts: in bash with source, in zsh as the file _dynapipe-hpc in a folder of "
            "fpath."
        ),
        epilog=examples("dynapipe-hpc completion bash", "dynapipe-hpc completion zsh"),
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    import shtab

    command: argparse.ArgumentParser = arguments.command
    for verb in _verbs(command):
        for action in verb._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(command, arguments.shell))
    return 0


def _verbs(command: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    (verbs,) = [a for a in command._actions if isinstance(a, argparse._SubParsersAction)]
    return list(verbs.choices.values())
