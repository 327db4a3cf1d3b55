"""Parts of a figure of the study."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper, or ours, and what was found.

    Attributes:
        name: C1 to C5 of the paper's artifact appendix, or a figure of the paper.
        text: What is claimed.
        paper: The paper's number.
        found: Our number.
        holds: Whether ours bears the claim out.
        why: Why not, or what limits the answer.
        is_whole: Whether it does so in full; else only the order of methods holds, not the size.
    """

    name: str
    text: str
    paper: str
    found: str
    holds: bool
    why: str = ""
    is_whole: bool = True

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of a table."""
        holds = ("yes" if self.is_whole else "in part") if self.holds else "no"
        return (self.name, self.text, self.paper, self.found, holds, self.why)


def is_as_large(gain: float, paper: float) -> bool:
    """Whether a gain is at least three quarters of that of the paper."""
    return gain >= 0.75 * paper


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its numbers.

    Attributes:
        name: Name of its files.
        question: What it answers.
        inputs: What is measured, what is simulated, from which table, with how many seeds.
        expected: Shape that the paper, or the method, leads to expect.
        rows: Table, one row per point; all have the same columns.
        draw: Function that draws it into a file, whose suffix says how.
        claims: Claims that it answers.
    """

    name: str
    question: str
    inputs: str
    expected: str
    rows: Sequence[Row]
    draw: Callable[[Path], None]
    claims: Sequence[Claim] = ()
