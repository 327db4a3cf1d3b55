"""Verbs of the command line: name, help, arguments, the function that runs, and its ranks."""

import argparse
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynapipe_hpc.data.errors import escaped
from dynapipe_hpc.job.launch import read_started

if TYPE_CHECKING:
    from dynapipe_hpc.job.ranks import Ranks


class Argument(NamedTuple):
    """An argument of a verb, with settings as `argparse` has them; see `option` and `switch`."""

    flags: Sequence[str]
    settings: dict[str, Any]


class Verb(NamedTuple):
    name: str
    summary: str
    description: str
    arguments: Sequence[Argument]
    function: Callable[[argparse.Namespace], int]

    def register(self, verbs: "argparse._SubParsersAction[Any]") -> None:
        parser: argparse.ArgumentParser = verbs.add_parser(
            self.name, help=self.summary, description=self.description
        )
        for each in self.arguments:
            parser.add_argument(*each.flags, **each.settings)
        parser.set_defaults(run=self.function)


def verb(
    summary: str, description: str, *arguments: Argument
) -> Callable[[Callable[[argparse.Namespace], int]], Verb]:
    """Makes a verb from a function, whose name it takes."""

    def make(function: Callable[[argparse.Namespace], int]) -> Verb:
        name = function.__name__.rstrip("_").replace("_", "-")
        return Verb(name, summary, description, arguments, function)

    return make


def option(
    names: str, text: str | None = None, kind: Callable[[str], Any] = Path, **settings: Any
) -> Argument:
    """An argument whose names end with a word for its value in help, as in `-o --output FILE`."""
    flags = [each for each in names.split() if each[0] == "-"] or names.split()[:1]
    metavar = " ".join(names.split()[len(flags) :]) or None
    settings = {"metavar": metavar, "type": kind, "help": text, **settings}
    return Argument(flags, settings)


def number(
    names: str, text: str, least: float, most: float = math.inf, **settings: Any
) -> Argument:
    """An argument that is a finite number within limits, an integer if the lower limit is."""
    kind = type(least)

    def parse(word: str) -> float:
        if least <= (n := kind(word)) <= most and n < math.inf:
            return n
        rule = f"at least {least:,}" if most == math.inf else f"from {least:,} to {most:,}"
        raise argparse.ArgumentTypeError(f"{word}: must be {rule}")

    parse.__name__ = kind.__name__  # for the message about what is no number
    return option(names, text, parse, **settings)


def switch(flag: str, text: str) -> Argument:
    return Argument([flag], {"action": "store_true", "help": text})


CONFIG = option("config CONFIG", "configuration file (TOML)")
SET = option(
    "--set TABLE.KEY=VALUE",
    "replace one value of the configuration; may be given several times",
    str,
    dest="overrides",
    action="append",
    default=[],
)
FORCE = switch("--force", "replace an output file that exists")
BATCHES = number("--batches N", "global batches to plan (default 5)", 1, default=5)


def output(metavar: str, text: str, **settings: Any) -> Argument:
    def parse(name: str) -> Path:
        if not name:  # which `Path` takes for the current folder
            raise argparse.ArgumentTypeError("is empty; name a file or folder")
        return Path(name)

    return option(f"-o --output {metavar}", text, parse, **settings)


def say(text: str | Iterable[str]) -> None:
    """Prints text or lines, safe for a terminal whatever names are in them."""
    for line in [text] if isinstance(text, str) else text:
        print(escaped(line))


@contextmanager
def open_ranks() -> "Iterator[Ranks]":
    """The ranks that a launcher started; a single process needs no MPI (login nodes lack it)."""
    started = read_started(os.environ, n_usable_cores=1)
    if started.launcher is None and started.interface is None:
        from dynapipe_hpc.job.ranks import Alone

        yield Alone()
        return
    from dynapipe_hpc.job.job import open_job

    with open_job() as job:
        yield job
