"""Rendezvous of torch.distributed over MPI, without a port or a file."""

import atexit
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from threading import Event, Thread
from typing import Any

from mpi4py import MPI
from torch._C._distributed_c10d import Store

from dynapipe_hpc.executor.transport.transport import TransportError

REQUEST = 0
"""Tag of requests, which consist of the reply's tag, operation, key and value."""

_MAX_PAUSE_S = 2e-3
_MIN_PAUSE_S = 0.05e-3


class RendezvousServer:
    """Server of keys and values in the memory of one rank, which answers requests of all ranks.

    A get is answered when the key is set, so that no rank has to ask twice.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[tuple[int, int]]] = {}
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="rendezvous", daemon=True)
        self._thread.start()
        # If a job ends early, the thread must end before MPI does.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stops the server; may be called more than once."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _MIN_PAUSE_S
        status = MPI.Status()
        while not self._stopped.wait(pause_s):
            request = self._comm.improbe(tag=REQUEST, status=status)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            if request is not None:
                self._answer(status.Get_source(), request.recv())
                pause_s = _MIN_PAUSE_S

    def _answer(self, rank: int, request: tuple[int, str, str, bytes | int]) -> None:
        tag, what, key, value = request
        reply: object = None
        match what, value:
            case "set", bytes():
                self._set(key, value)
            case "get", _:
                if key not in self._values:
                    self._waiting.setdefault(key, []).append((rank, tag))
                    return
                reply = self._values[key]
            case "add", int():
                reply = int(self._values.get(key, b"0")) + value
                self._set(key, b"%d" % reply)
            case "check", _:
                reply = key in self._values
            case "delete", _:
                reply = self._values.pop(key, None) is not None
            case "count", _:
                reply = len(self._values)
            case _:
                raise ValueError(f"rank {rank}: unknown request {what} {key!r}")
        self._comm.send(reply, dest=rank, tag=tag)

    def _set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for rank, tag in self._waiting.pop(key, []):
            self._comm.send(value, dest=rank, tag=tag)


_N_REPLY_TAGS = 30_000  # MPI promises tags up to 32,767


class Rendezvous(Store):
    """Key-value store on the first rank, in which ranks find each other's addresses.

    Process groups of NCCL and gloo use it while they connect. C++ keeps it as long as the groups
    exist, and this object must exist as long, because C++ calls it.
    """

    def __init__(self, comm: MPI.Intracomm, timeout_s: float) -> None:
        """Opens the store; called by all ranks of `comm` together."""
        super().__init__()
        self._comm = comm.Dup()
        self._timeout_s = timeout_s
        self._requests = count()
        self._server = RendezvousServer(self._comm) if comm.Get_rank() == 0 else None
        self._is_open = True

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """Value of a key; waits until a rank has set it, or raises `TransportError`."""
        return bytes(self._ask("get", key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys are set; raises `TransportError` if one is not set in time."""
        for key in keys:
            self._ask("get", key, timeout_s=timeout.total_seconds() if timeout else None)

    def add(self, key: str, value: int) -> int:
        """Adds to a counter, which starts at 0, and returns the sum."""
        return int(self._ask("add", key, value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set; False after the rendezvous has ended.

        NCCL's monitor, if enabled, keeps asking for the key that announces a failure.
        """
        return self._is_open and all(self._ask("check", key) for key in keys)

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - the name that torch calls
        """Deletes a key and returns whether it was set."""
        return bool(self._ask("delete", key))

    def getNumKeys(self) -> int:  # noqa: N802 - the name that torch calls
        """Number of keys that are set."""
        return int(self._ask("count", ""))

    def clone(self) -> "Rendezvous":
        """The store itself: threads may share it."""
        return self

    def leave(self) -> None:
        """Announces that this rank has connected; the first rank waits until all have connected.

        Raises:
            TransportError: A rank has not connected in time.
        """
        ranks = range(self._comm.Get_size())
        notes = [f"rank {rank} has connected" for rank in ranks]
        self.set(notes[self._comm.Get_rank()], b"")
        if self._server:
            self.wait(notes)

    def close(self) -> None:
        """Ends the rendezvous for this rank; on the first rank, for all."""
        self._is_open = False
        if self._server:
            self._server.stop()

    def free(self) -> None:
        """Frees the communicator; called by all ranks together when all groups are closed."""
        self._comm.Free()

    def _ask(
        self, what: str, key: str, value: bytes | int = b"", timeout_s: float | None = None
    ) -> Any:
        if not self._is_open:
            raise TransportError(f"ranks have already connected: too late for {what} {key!r}")
        tag = REQUEST + 1 + next(self._requests) % _N_REPLY_TAGS
        self._comm.send((tag, what, key, value), dest=0, tag=REQUEST)
        limit_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        start_s = time.monotonic()
        while (reply := self._comm.improbe(source=0, tag=tag)) is None:
            waited_s = time.monotonic() - start_s
            if waited_s > limit_s:
                raise TransportError(
                    f"ranks did not connect: rank {self._comm.Get_rank()} waited {limit_s:g} s "
                    f"for {key!r} from another rank, which hangs or has not reached this point"
                )
            time.sleep(min(waited_s / 10, _MAX_PAUSE_S))
        return reply.recv()


@contextmanager
def rendezvous(comm: MPI.Intracomm, timeout_s: float) -> Iterator[Rendezvous]:
    """Opens a store while the ranks of `comm` connect; called by all ranks together."""
    store = Rendezvous(comm, timeout_s)
    try:
        yield store
        store.leave()
    finally:
        store.close()
