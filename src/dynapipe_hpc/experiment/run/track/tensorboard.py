"""Curves for TensorBoard, in the run folder."""

from collections.abc import Mapping
from pathlib import Path

from dynapipe_hpc.job.print_error import warn

FOLDER = "tensorboard"


class TensorBoard:
    """Event files of one run."""

    name = "tensorboard"

    def __init__(self, output: Path, n_done: int) -> None:
        """Opens a new event file.

        Args:
            output: The run folder.
            n_done: Iterations that count; later ones of an earlier start are no longer shown.

        Raises:
            ImportError: TensorBoard is not installed.
        """
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(output / FOLDER), purge_step=n_done + 1)

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        """Writes the rest."""
        self._writer.close()


def open_tensorboard(output: Path, n_done: int) -> TensorBoard | None:
    """TensorBoard's curves of a run; None if it is not installed, or does not work here."""
    try:
        return TensorBoard(output, n_done)
    except ImportError:
        return None
    except Exception as error:  # its versions do not go with all those of others
        warn(f"tensorboard: {error}; set report.tensorboard to false")
        return None
