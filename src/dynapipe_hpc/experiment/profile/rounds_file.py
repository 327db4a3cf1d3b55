"""The rounds file: measurements of an unfinished mode, kept beside the cost table."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np

from dynapipe_hpc.data.atomic_write import atomic_write, check_replaceable
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.stored_array import holds, open_stored, stored_array, stored_group
from dynapipe_hpc.data.stored_attributes import StoredAttributes
from dynapipe_hpc.experiment.profile.rounds import MAX_ROUNDS, StackRounds
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.table.profile_file import ROUNDS_FORMAT

_N_MEMORY, _N_TIMES = (3,), (2, 5)  # times of whole backward passes, and of split ones


class RoundsFile:
    """Rounds by name, for one table; rounds of another table are ignored.

    The file exists from the first round of a mode to the last, and is rewritten after each.
    """

    def __init__(self, table: Path, table_id: str) -> None:
        """Reads the rounds beside `table`, if they belong to the table with this `table_id`.

        Raises:
            InputError: The file cannot be written, or is of another kind.
        """
        self.path = table.with_suffix(".rounds.h5")
        self._table_id = table_id
        check_replaceable(self.path)
        self._known = self._read() if self.path.exists() else {}

    def get(self, name: str) -> StackRounds | None:
        """The rounds kept under a name; None if there are none."""
        return self._known.get(name)

    def put(self, name: str, rounds: StackRounds) -> None:
        """Keeps rounds under a name.

        Raises:
            RunError: The file cannot be written, for example because the disk is full.
        """
        self._known[name] = rounds
        image = BytesIO()
        with h5py.File(image, "w") as file:
            file.attrs["format"] = np.bytes_(ROUNDS_FORMAT.encode())
            file.attrs["table_id"] = np.bytes_(self._table_id.encode())
            for each, known in self._known.items():
                _write(file.create_group(each), known)
        with atomic_write(self.path) as temporary:
            temporary.write_bytes(image.getvalue())

    def clear(self) -> None:
        """Deletes all rounds, once the table has their result."""
        self._known = {}
        self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, StackRounds]:
        """All rounds; none if the file is damaged or of another table: they are measured again."""
        try:
            with open_stored(self.path) as file:
                is_ours = StoredAttributes(file).get("table_id") == self._table_id
                names = list(file) if is_ours else []
                return {name: _read_rounds(stored_group(file, name)) for name in names}
        except (InputError, KeyError, OSError, RuntimeError, TypeError, ValueError):
            return {}


def _write(group: h5py.Group, rounds: StackRounds) -> None:
    group.attrs["n_rounds"] = rounds.n_rounds
    group["memory"] = rounds.memory
    for k, times_ms in enumerate(rounds.times_ms):
        group[f"times_ms/{k:03d}"] = times_ms


def _read_rounds(group: h5py.Group) -> StackRounds:
    memory = _array(group, "memory", _N_MEMORY)
    times_ms = tuple(_read_times(group, memory))
    n_rounds = StoredAttributes(group)["n_rounds"]
    if not isinstance(n_rounds, int) or not len(times_ms) <= n_rounds <= MAX_ROUNDS:
        raise InputError(f"n_rounds is {n_rounds}")
    return StackRounds(n_rounds, memory, times_ms)


def _read_times(group: h5py.Group, memory: FloatArray) -> Iterator[FloatArray]:
    """Rounds of times, each with at most as many micro-batches as the one before."""
    n_ranks, n_most, n_stacks, _ = memory.shape
    n_fields = _N_TIMES
    every = stored_group(group, "times_ms") if holds(group, "times_ms") else {}
    for name in sorted(every):
        times_ms = _array(group, f"times_ms/{name}", n_fields)
        n = times_ms.shape[1]
        if n > n_most or (times_ms.shape[0], times_ms.shape[2]) != (n_ranks, n_stacks):
            raise InputError(f"'times_ms/{name}' has shape {times_ms.shape}")
        n_most, n_fields = n, times_ms.shape[3:]
        yield times_ms


def _array(group: h5py.Group, name: str, n_fields: tuple[int, ...]) -> FloatArray:
    array = stored_array(group, name)
    if array.dtype.kind not in "iuf" or array.ndim != 4 or array.shape[3] not in n_fields:
        raise InputError(f"'{name}' has shape {array.shape} and type {array.dtype}")
    values: FloatArray = array[:]
    return values
