"""What an interrupted profile has measured of a mode, in a file beside its table."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np

from dynapipe_hpc.data.replacing import replacing
from dynapipe_hpc.experiment.profile_rounds import StackRounds
from dynapipe_hpc.planner.cost.profile_file import ROUNDS_FORMAT


class RoundsFile:
    """Rounds by name, for one table; of another table's rounds it knows nothing.

    The file is there from the first round of a mode to the last, and is written anew after each.
    """

    def __init__(self, table: Path, table_id: str) -> None:
        """Looks for rounds beside `table`, which `table_id` tells from others of its name."""
        self.path = table.with_suffix(".rounds.h5")
        self._table_id = table_id
        self._known = dict(self._read()) if self.path.exists() else {}

    def get(self, name: str) -> StackRounds | None:
        """What is known of some stacks."""
        return self._known.get(name)

    def put(self, name: str, rounds: StackRounds) -> None:
        """Keeps what is known of some stacks.

        Raises:
            RunError: The file system refuses, as when the disk is full.
        """
        self._known[name] = rounds
        image = BytesIO()
        with h5py.File(image, "w") as file:
            file.attrs["format"] = np.bytes_(ROUNDS_FORMAT.encode())
            file.attrs["table_id"] = self._table_id
            for each, known in self._known.items():
                _write(file.create_group(each), known)
        with replacing(self.path) as beside:
            beside.write_bytes(image.getvalue())

    def clear(self) -> None:
        """Drops everything, as the table has it."""
        self._known = {}
        self.path.unlink(missing_ok=True)

    def _read(self) -> Iterator[tuple[str, StackRounds]]:
        try:
            with h5py.File(self.path, "r") as file:
                if file.attrs.get("table_id") == self._table_id:
                    yield from ((name, _read_rounds(group)) for name, group in file.items())
        except (OSError, KeyError):
            return  # not a file of ours, or damaged: measured again


def _write(group: h5py.Group, rounds: StackRounds) -> None:
    group.attrs["n_rounds"] = rounds.n_rounds
    group["memory"] = rounds.memory
    for k, times_ms in enumerate(rounds.times_ms):
        group[f"times_ms/{k:03d}"] = times_ms


def _read_rounds(group: h5py.Group) -> StackRounds:
    times_ms = group.get("times_ms", {})
    return StackRounds(
        int(group.attrs["n_rounds"]),
        np.array(group["memory"]),
        tuple(np.array(times_ms[k]) for k in sorted(times_ms)),
    )
