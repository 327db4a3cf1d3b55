"""What is known about where a job runs, line by line."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

_MOST_LISTED = 8


class Level(Enum):
    """How much a finding matters; its value is what users read."""

    FACT = ""
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact.

    Attributes:
        subject: What it is about, a few words.
        text: What is so; if that is not good, with what to do about it.
        level: A warning does not prevent a run, a problem does.
    """

    subject: str
    text: str
    level: Level = Level.FACT


def merged(found: Sequence[Sequence[Finding]]) -> list[Finding]:
    """What all ranks found, each fact once; where ranks differ, with theirs.

    Args:
        found: By rank. What is the only finding on its subject is said for all.
    """
    ranks_of: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(found):
        for finding in findings:
            ranks_of.setdefault(finding, []).append(rank)
    n_texts = Counter(finding.subject for finding in ranks_of)
    order = {subject: place for place, subject in enumerate(n_texts)}
    return [
        finding if n_texts[finding.subject] == 1 else _of_ranks(finding, ranks)
        for finding, ranks in sorted(ranks_of.items(), key=lambda item: order[item[0].subject])
    ]


def lines(heading: str, findings: Sequence[Finding]) -> Iterator[str]:
    """A section of the report, with subjects in a column."""
    width = max((len(finding.subject) for finding in findings), default=0)
    yield heading
    for finding in findings:
        mark = f"{finding.level.value}: " if finding.level.value else ""
        yield f"  {finding.subject:{width}}  {mark}{finding.text}"


def _of_ranks(finding: Finding, ranks: Sequence[int]) -> Finding:
    listed = ", ".join(str(rank) for rank in ranks[:_MOST_LISTED])
    more = ", ..." if len(ranks) > _MOST_LISTED else ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return replace(finding, text=f"{finding.text} ({noun} {listed}{more})")
