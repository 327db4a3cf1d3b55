"""All-reduce of a dataclass whose fields say how each is combined over ranks."""

import dataclasses
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

from dynapipe_hpc.job.job import Job
from dynapipe_hpc.report.iteration_record import Over

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Numbers = TypeVar("Numbers", bound="DataclassInstance")


_SIGNS = {Over.MAX: 1, Over.MIN: -1}
"""Least numbers are compared by their negatives, so that one all-reduce has both."""


class _Field(NamedTuple):
    name: str
    kind: Any
    over: Over


def all_reduce_fields(numbers: Numbers, job: Job) -> Numbers:
    """Combines the numbers of all ranks, which call this together.

    Two all-reduces, of sums and of largest numbers, take as long whatever the number of ranks is,
    up to a logarithm.

    Args:
        numbers: Numbers of this rank. Sums may be tuples, as long on every rank.
        job: The ranks.

    Returns:
        The numbers of all ranks, of which those that all know alike are this rank's.
    """
    fields = _fields_of(type(numbers))
    summed = [(field, getattr(numbers, field.name)) for field in fields if field.over is Over.SUM]
    terms = chain.from_iterable(n if isinstance(n, tuple) else (n,) for _, n in summed)
    sums = iter(job.all_reduce_sum(list(terms)))
    combined = {
        name: kind(islice(sums, len(number)) if isinstance(number, tuple) else next(sums))
        for (name, kind, _), number in summed
    }
    compared = [(field, _SIGNS[field.over]) for field in fields if field.over in _SIGNS]
    largest = job.all_reduce_max([sign * getattr(numbers, field.name) for field, sign in compared])
    for ((name, kind, _), sign), number in zip(compared, largest, strict=True):
        combined[name] = kind(sign * number)
    return dataclasses.replace(numbers, **combined)


@cache
def _fields_of(kind: type) -> list[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    # The type comes first, and `Over` last; between them are limits of what files may hold.
    return [_Field(name, get_args(hint)[0], get_args(hint)[-1]) for name, hint in hints.items()]
