"""The time between two iterations, in which threads of a rank begin nothing."""

from threading import Event

_MAX_S = 0.05


class QuietPeriod:
    """Time from the last instruction of an iteration to the first of the next.

    Ranks compare plans and add up numbers then, and each waits for the slowest. A plan that is
    taken makes room for another, so that planning would begin just then, on every rank, and take
    the core and the interpreter lock. Threads whose work can wait call `wait` before they begin it.
    """

    def __init__(self) -> None:
        """Begins outside of any quiet period."""
        self._over = Event()
        self._over.set()

    def begin(self) -> None:
        """Begins a quiet period; does nothing within one."""
        self._over.clear()

    def end(self) -> None:
        """Ends the quiet period, if there is one."""
        self._over.set()

    def wait(self) -> None:
        """Waits for the end of a quiet period, at most 50 ms.

        One that is longer has an evaluation or a checkpoint in it, and threads may as well work.
        """
        self._over.wait(_MAX_S)
