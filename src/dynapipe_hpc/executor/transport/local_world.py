"""Ranks as threads of one process, with deadlock detection."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dynapipe_hpc.executor.transport.transport import TransportError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Wait:
    is_over: Callable[[], bool]
    what: str


class LocalWorld:
    """Ranks that share memory; shared state changes under one lock.

    If ranks on a network would hang because each waits for another, here all of them fail with an
    error that says what each waited for.
    """

    def __init__(self, n_ranks: int) -> None:
        """Counts every rank as running until `run` sees it end."""
        self.n_ranks = n_ranks
        self._changed = threading.Condition()
        self._at_work = set(range(n_ranks))
        self._waits: dict[int, _Wait] = {}
        self._failure: str | None = None

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """Calls `work(rank)` for all ranks concurrently, and returns the results by rank.

        Raises:
            Exception: The exception of the first rank that failed.
        """
        failures: list[Exception] = []

        def work_of(rank: int) -> Result:
            try:
                return work(rank)
            except Exception as error:
                with self._changed:
                    failures.append(error)
                    self._fail(f"rank {rank} failed: {error}")
                raise
            finally:
                self._leave(rank)

        self._at_work = set(range(self.n_ranks))
        with ThreadPoolExecutor(self.n_ranks) as threads:
            futures = [threads.submit(work_of, rank) for rank in range(self.n_ranks)]
        if failures:
            raise failures[0]
        return [future.result() for future in futures]

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Locks shared state for a change; an error in the block reaches all ranks.

        Raises:
            TransportError: Another rank has failed.
        """
        with self._changed:
            self._raise_failure()
            try:
                yield
            except TransportError as error:
                self._fail(str(error))
                raise
            self._changed.notify_all()

    def wait_until(self, rank: int, is_over: Callable[[], bool], what: str) -> None:
        """Waits for shared state to change.

        Args:
            rank: Rank that waits.
            is_over: Function that tells whether the wait is over; it reads shared state only.
            what: Description of what is waited for, for the error.

        Raises:
            TransportError: The ranks are in a deadlock, or one has failed.
        """
        with self._changed:
            self._waits[rank] = _Wait(is_over, what)
            self._look_for_deadlock()
            self._changed.wait_for(lambda: is_over() or self._failure is not None)
            del self._waits[rank]
            if not is_over():
                self._raise_failure()

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._at_work.discard(rank)
            self._look_for_deadlock()

    def _look_for_deadlock(self) -> None:
        stuck = [r for r, wait in self._waits.items() if not wait.is_over()]
        if stuck and self._at_work == set(stuck):
            waits = "; ".join(f"rank {r} waits for {self._waits[r].what}" for r in sorted(stuck))
            self._fail(f"deadlock: {waits}")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise TransportError(self._failure)
