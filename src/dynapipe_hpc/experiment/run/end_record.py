"""The file ended.json of a run folder: how the run ended, as far as a rank could say."""

import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.experiment.run_lock import SINCE
from dynapipe_hpc.job.ranks import JobOutcome, Recorder
from dynapipe_hpc.report.run_folder import ENDED, write_atomically

_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EndRecord:
    """End of a run.

    Attributes:
        how: The way in which it ended.
        exit_code: Exit code of the rank that says so.
        message: Last message, as it was printed.
        time: Time of the message, as ISO 8601 with its zone.
        host: Name of the host of that rank.
    """

    how: JobOutcome
    exit_code: int
    message: str
    time: str
    host: str

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The record of a run folder; None if no rank could write one.

        Raises:
            InputError: The file is damaged.
        """
        path = folder / ENDED
        if not path.exists():
            return None
        try:
            fields = json.loads(read_input(path, _MAX_BYTES))
            ended = cls(
                JobOutcome(fields["how"]),
                int(fields["exit_code"]),
                str(fields["message"]),
                str(fields["time"]),
                str(fields["host"]),
            )
            _ = ended.time_utc  # raises ValueError if it is no time
        except (ValueError, OverflowError, TypeError, KeyError, RecursionError) as error:
            raise InputError(
                f"{path}: not the record of an end ({quoted(error)}); remove the file"
            ) from error
        return ended

    @property
    def time_utc(self) -> str:
        """The time as locks say since when they are held."""
        return datetime.fromisoformat(self.time).astimezone(UTC).strftime(SINCE)


def recorder_of(folder: Path) -> Recorder:
    """A recorder for a run folder, which exists; it may raise what `write_atomically` raises."""

    def record(how: JobOutcome, exit_code: int, message: str) -> None:
        now = datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")
        ended = EndRecord(how, exit_code, message, now, platform.node())
        # The job ends now: nobody waits for the disk.
        write_atomically(folder / ENDED, json.dumps(asdict(ended)) + "\n", lasting=False)

    return record
