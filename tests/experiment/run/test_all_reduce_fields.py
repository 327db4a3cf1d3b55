"""Fields of a dataclass, combined over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mpi4py import MPI

from dynapipe_hpc.experiment.run.iteration import all_reduce_fields
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.report.records import Over


@dataclass(frozen=True)
class Numbers:
    """One of every kind."""

    same: Annotated[int, Over.SAME]
    least: Annotated[int, Over.MIN]
    total: Annotated[float, Over.SUM]
    totals: Annotated[tuple[float, ...], Over.SUM]
    count: Annotated[int, Over.SUM]
    largest: Annotated[float, Over.MAX]


class JobOfTwo(Job):
    """A job whose other rank has ten more of everything."""

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        return [number + (number + 10) for number in map(float, numbers)]

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        return [max(number, number + 10) for number in map(float, numbers)]


def test_a_field_is_combined_as_its_type_says() -> None:
    own = Numbers(same=3, least=7, total=0.5, totals=(1.0, 2.0, 4.0), count=5, largest=2.5)
    combined = all_reduce_fields(own, JobOfTwo(MPI.COMM_SELF))
    # The largest of the negatives, -7 and 3, is 3: of a rank that has -3.
    assert combined == Numbers(3, -3, 11.0, (12.0, 14.0, 18.0), 20, 12.5)
    assert (type(combined.count), type(combined.least)) == (int, int)
