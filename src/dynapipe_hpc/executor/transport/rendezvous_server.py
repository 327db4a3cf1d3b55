"""Server thread of the key-value store through which ranks connect."""

import atexit
from threading import Event, Thread

from mpi4py import MPI

REQUEST = 0
"""Tag of requests, which consist of the reply's tag, operation, key and value."""

_MAX_PAUSE_S = 2e-3
_MIN_PAUSE_S = 0.05e-3


class RendezvousServer:
    """Server of keys and values in the memory of one rank, which answers requests of all ranks.

    A get is answered when the key is set, so that no rank has to ask twice.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Starts answering the ranks of `comm`."""
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
                raise ValueError(f"rank {rank} asked for {what} {key!r}")
        self._comm.send(reply, dest=rank, tag=tag)

    def _set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for rank, tag in self._waiting.pop(key, []):
            self._comm.send(value, dest=rank, tag=tag)
