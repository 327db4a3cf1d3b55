"""Calls of MPI by kind, counted where the package makes them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dynapipe_hpc.job.world import MPI

KINDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("send", "isend", "Send", "Isend", "ssend", "issend"),
    "collectives": (
        *("Barrier", "barrier", "Ibarrier", "Bcast", "bcast", "Ibcast", "gather", "Gather"),
        *("allgather", "Allgather", "Iallgather", "Allreduce", "allreduce", "Iallreduce"),
        *("alltoall", "Alltoall", "scatter", "Scatter", "reduce", "Reduce"),
    ),
    "one_sided": (
        *("Put", "Get", "Rput", "Rget", "Accumulate", "Raccumulate", "Get_accumulate"),
        *("Rget_accumulate", "Fetch_and_op", "Compare_and_swap"),
    ),
    "flushes": ("Flush", "Flush_local", "Flush_all", "Flush_local_all"),
}
"""Methods of communicators and windows by kind. A message counts where it is sent."""
_MEMORY = ("Allocate", "Allocate_shared")


class Calls:
    """Calls of this rank by kind, and bytes of windows, in parts of a program."""

    def __init__(self) -> None:
        """Counts for no part yet."""
        self._now = Counter[str]()

    @contextmanager
    def during(self) -> Iterator[Counter[str]]:
        """Counts the calls of a block, of all threads; the counter is filled at its end."""
        counts = Counter[str]()
        before, self._now = self._now, counts
        try:
            yield counts
        finally:
            self._now = before

    def add(self, kind: str, n: int = 1) -> None:
        """Adds to the part that is counted now."""
        self._now[kind] += n


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Counts calls to windows that are made inside the block, and to `MPI.COMM_WORLD`.

    Calls to communicators that are derived from it count, too.
    """
    calls = Calls()
    plain: dict[str, Any] = {"Win": MPI.Win, "Intracomm": MPI.Intracomm}
    names = {name: kind for kind, methods in KINDS.items() for name in methods}
    module: Any = MPI
    for name, base in list(plain.items()):
        methods = {each: _counting(calls, base, each, names[each]) for each in _of(base, names)}
        if name == "Win":
            methods |= {each: _sizing(calls, base, each) for each in _MEMORY}
        setattr(module, name, type(f"Counted{name}", (base,), methods))
    plain["COMM_WORLD"], module.COMM_WORLD = MPI.COMM_WORLD, module.Intracomm(MPI.COMM_WORLD)
    try:
        yield calls
    finally:
        for name, value in plain.items():
            setattr(module, name, value)


def _of(base: type, names: Mapping[str, str]) -> list[str]:
    return [name for name in names if hasattr(base, name)]


def _counting(calls: Calls, base: Any, name: str, kind: str) -> Callable[..., Any]:
    method = getattr(base, name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.add(kind)
        return method(self, *arguments, **named)

    return call


def _sizing(calls: Calls, base: Any, name: str) -> Any:
    method = getattr(base, name).__func__

    def allocate(cls: type, n_bytes: int, *arguments: Any, **named: Any) -> Any:
        calls.add("window_bytes", n_bytes)
        return method(cls, n_bytes, *arguments, **named)

    return classmethod(allocate)
