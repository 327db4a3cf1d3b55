"""Explanation of a run folder: how it ended or stands, how far it got, what to try."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input, why_unreadable
from dynapipe_hpc.experiment.run_lock import PATIENCE_S, SINCE, writer_of
from dynapipe_hpc.experiment.watch.rank_status import describe_hangs
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.report.records import duration, log_line
from dynapipe_hpc.report.run_folder import (
    ENDED,
    ITERATIONS,
    LOCK,
    iterations_file,
    not_a_run_error,
)

_MAX_BYTES = 1 << 20


class EndRecord(NamedTuple):
    """End of a run, as in ended.json: how, and the last message of the rank that recorded it."""

    how: JobOutcome
    exit_code: int
    message: str
    time: str  # as ISO 8601 with its zone
    host: str
    time_utc: str  # in the format in which locks say since when they are held


def read_end(folder: Path) -> EndRecord | None:
    """The record of a run folder; None if no rank could write one."""
    path = folder / ENDED
    if not path.exists():
        return None
    try:
        content = read_input(path, _MAX_BYTES)
        if not content:  # of a rank that was killed before it could write
            return None
        ended = json.loads(content)
        time_utc = datetime.fromisoformat(ended["time"]).astimezone(UTC).strftime(SINCE)
        return EndRecord(**ended | {"how": JobOutcome(ended["how"])}, time_utc=time_utc)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"{path}: not a record of how a run ended (damaged, or foreign); remove the file"
        ) from error


_AGAIN = "start the same command again: it resumes from the newest checkpoint, if there is one"


def explain_run(folder: Path) -> str:
    """Explains how a run ended, or that it has not, from what it left in its folder."""
    if reason := why_unreadable(folder / ITERATIONS):
        raise not_a_run_error(folder, f"{ITERATIONS}: {reason}")
    return "\n".join((*_end(folder), *_progress(folder), *describe_hangs(folder)))


def _end(folder: Path) -> Iterator[str]:
    # The lock first: a run that ends meanwhile has then recorded it.
    holder, silent_s = writer_of(folder), _silent_s(folder / LOCK)
    ended = read_end(folder)
    is_earlier = ended is not None and holder is not None and ended.time_utc < holder.since
    if holder is not None and silent_s is not None and (ended is None or is_earlier):
        if holder.is_alive() or silent_s < PATIENCE_S:
            yield f"still running: {holder}"
            yield "next: wait, or send SIGUSR1 to a rank to stop it after the current iteration"
            return
        yield (
            f"no sign of life for {duration(silent_s)}: {holder}, which cannot be seen from this "
            "host"
        )
        yield f"next: see there whether it exists; if not, {_AGAIN}"
        return
    if ended is None:
        yield (
            "killed: the run is gone, and no rank said why. All ranks were killed at once (a time "
            "limit, kill -9, a host that failed), or the launcher ended them first"
        )
        yield f"next: look into the launcher's and the scheduler's output, then {_AGAIN}"
        return
    yield f"{ended.how}: {ended.time} on {ended.host}, exit code {ended.exit_code}"
    yield f"  {ended.message}"
    more = "dynapipe-hpc report shows the run; to continue, make it longer in [training]"
    corrected = f"correct what the message names; then {_AGAIN}"
    advice = {JobOutcome.COMPLETED: more, JobOutcome.FAILED: corrected}
    yield f"next: {advice.get(ended.how, _AGAIN)}"


def _silent_s(lock: Path) -> float | None:
    """Time from a holder's last touch (its clock) to now (ours); None if the lock is gone."""
    touched_s = list[float]()
    for path in lock.glob("*.json"):
        with suppress(FileNotFoundError):
            touched_s.append(path.stat().st_mtime)
    return max(0.0, time.time() - max(touched_s)) if touched_s else None


def _progress(folder: Path) -> Iterator[str]:
    record = iterations_file(folder).last()
    yield f"last at {record.time}: {log_line(record)}" if record else "no iteration is done yet"
    folders = (folder / "checkpoints").glob("*")
    done = [int(path.name) for path in folders if re.fullmatch(r"\d{6,}", path.name)]
    yield (
        f"newest checkpoint: after {max(done)} iterations"
        if done
        else "newest checkpoint: none; the run starts again from the beginning"
    )
