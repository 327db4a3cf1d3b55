"""A change to the source that some test must notice."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "dynapipe_hpc"


class StaleMutantError(Exception):
    """The source no longer has the text that a mutant changes exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one place in a source file, named relative to the package, and its tests.

    The file has the old text once. Of the tests, as pytest names them, one must fail.
    """

    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return SOURCES / self.file

    @property
    def module(self) -> str:
        return ".".join(("dynapipe_hpc", *Path(self.file).with_suffix("").parts))

    def changed_source(self) -> str:
        """The text of the file with the change.

        Raises:
            StaleMutantError: The file has the old text not at all, or more than once.
        """
        source = self.path.read_text()
        if (n := source.count(self.old)) != 1:
            raise StaleMutantError(
                f"{self.file} has {self.old!r} {n} times, which a mutant ('{self.why}') changes; "
                "write the mutant anew"
            )
        return source.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


def of(file: str, tests: str, *changes: tuple[str, ...]) -> Iterator[Mutant]:
    """Mutants of a source file that a file of tests, or one test of it, notices.

    Every change is the old text, the new one, the mistake, and names of tests, without `test_`, of
    which one must fail; where none is named, any. Of one test, these are its cases in brackets.
    Where most of the text stays, it is there once, with what changes in it as «old→new».
    """
    separator = "" if "::" in tests else "::test_"
    for old, new, why, *names in map(_in_full, changes):
        named = tuple(f"{tests}{separator}{name}" for name in names)
        yield Mutant(file, old, new, why, named or (tests,))


def _in_full(change: tuple[str, ...]) -> tuple[str, ...]:
    marked = re.fullmatch("(.*)«(.*)→(.*)»(.*)", change[0], re.DOTALL)
    if not marked:
        return change
    before, old, new, behind = marked.groups()
    return (before + old + behind, before + new + behind, *change[1:])
