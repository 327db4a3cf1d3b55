"""The case that the doctor examines, and findings about it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job

_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A job, and the experiment that it is to run.

    `path` names a configuration; without one, only the machine is examined. If it cannot be used,
    `error` is the reason and `files` is None. `folder` is where a run would write.
    """

    job: Job
    on_host: Job
    folder: Path
    path: Path | None = None
    files: Experiment | None = None
    error: str = ""

    @classmethod
    def from_arguments(
        cls, job: Job, path: Path | None, overrides: list[str], output: Path | None
    ) -> "Case":
        """Reads the configuration, if there is one; all ranks together."""
        files, reason = None, ""
        try:
            files = Experiment(load_config(path, overrides)) if path else None
        except InputError as error:
            reason = str(error)
        return cls(job, job.on_this_host(), output or Path("runs"), path, files, reason)

    def close(self) -> None:
        self.on_host.free()

    @property
    def config(self) -> ExperimentConfig | None:
        return self.files.config if self.files else None


class Level(Enum):
    FACT = ""
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine, the job or its files; if it is not good, also how to fix it."""

    subject: str
    text: str
    level: Level = Level.FACT


def merged(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The findings of all ranks, each once; where ranks differ, with the ranks' numbers."""
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
