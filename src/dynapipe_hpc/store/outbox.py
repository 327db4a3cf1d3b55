"""Plans on their way from a planner to the ranks of one host."""

from dynapipe_hpc.store.memory import Memory
from dynapipe_hpc.store.ring_layout import WORD, Message, RingLayout


class Outbox:
    """Plans of an iteration for the ranks of a host, which leave together when the last is known.

    Ranks are numbered within the host, and iterations from the start of the job.
    """

    def __init__(self, memory: Memory, owner: int, layout: RingLayout) -> None:
        """Sends plans into the ring at the start of the memory of `owner`."""
        self._memory, self._owner, self._layout = memory, owner, layout
        self._n_taken = [0] * layout.n_ranks
        self._messages: dict[int, Message] = {}

    def has_room(self, rank: int, number: int) -> bool:
        """Whether a rank has taken the iteration whose entry this one needs."""
        if not self._is_free(rank, number):
            counts = self._memory.read(self._owner, 0, self._layout.n_ranks * WORD.size)
            self._n_taken = [count for (count,) in WORD.iter_unpack(counts)]
        return self._is_free(rank, number)

    def add(self, rank: int, number: int, message: Message) -> None:
        """Adds the message of a rank, for which there is room, and sends all if it is the last."""
        self._messages[rank] = message
        if len(self._messages) == self._layout.n_ranks:
            body = self._layout.pack([message for _, message in sorted(self._messages.items())])
            # The count last: a rank that sees it reads the body at once.
            self._memory.write(self._owner, self._layout.body(number), body)
            self._memory.write(self._owner, self._layout.n_put(number), WORD.pack(number + 1))
            self._messages.clear()

    def _is_free(self, rank: int, number: int) -> bool:
        return number - self._n_taken[rank] < self._layout.n_entries
