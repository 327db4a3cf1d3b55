"""Findings about the place where a job runs, and their report."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

_MAX_LISTED = 8


class Level(Enum):
    """Severity of a finding; the value is the text that users read."""

    FACT = ""
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine, the job or its files.

    Attributes:
        subject: Topic, in a few words.
        text: The fact; if it is not good, also how to fix it.
        level: Severity: a problem prevents a run, a warning does not.
    """

    subject: str
    text: str
    level: Level = Level.FACT


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The findings of all ranks, each once; where ranks differ, with the ranks' numbers.

    Args:
        by_rank: Findings by rank. The only finding on a subject is shown without rank numbers.
    """
    ranks_of: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(by_rank):
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
    listed = ", ".join(str(rank) for rank in ranks[:_MAX_LISTED])
    more = ", ..." if len(ranks) > _MAX_LISTED else ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return replace(finding, text=f"{finding.text} ({noun} {listed}{more})")
