"""Explanation of a run folder: what ended the run, how far it came, and what to try next."""

import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dynapipe_hpc.data.input_file import why_unreadable
from dynapipe_hpc.experiment.run.end_record import EndRecord
from dynapipe_hpc.experiment.run_lock import PATIENCE_S, writer_of
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.report.amounts import duration
from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.not_a_run import not_a_run_error
from dynapipe_hpc.report.run_folder import ITERATIONS, LOCK, iterations_file

_AGAIN = "start the same command again: it resumes from the newest checkpoint, if there is one"
_HINTS = (
    (
        r"process stopped",
        "a process was suspended: kill -CONT it, or find out what stops processes on its host",
    ),
    (
        r"no progress here",
        "see what the rank that the message names was doing; if that may take so long, raise the "
        "limit in parentheses",
    ),
    (
        r"was killed, or crashed",
        "look for the kernel's out-of-memory killer (dmesg) and in the scheduler's log of that "
        "host; if memory ran out, lower cluster.device_memory_bytes",
    ),
    (r"(?i)out of memory|cannot allocate", "lower cluster.device_memory_bytes"),
    (
        r"No space left|quota",
        "free space on that file system, or keep fewer checkpoints (checkpoint.keep_last)",
    ),
    (r"not finite", "lower training.learning_rate, or raise training.max_skipped_updates"),
    (r"cannot read sample|checksum", "run dynapipe-hpc inspect FILE.h5 --verify on the dataset"),
    (r"device_memory_bytes", "raise cluster.device_memory_bytes if the device has more"),
)
"""Advice for messages that match, the most telling first."""


def explain_run(folder: Path) -> str:
    """Explains how a run ended, or that it has not, from what it left in its folder.

    Args:
        folder: A run folder.

    Raises:
        InputError: It is not one, or a file of it is damaged.
    """
    _check(folder)
    return "\n".join((*_end(folder), *_progress(folder)))


def how_it_stands(folder: Path) -> str:
    """One line on whether a run still executes, or how it ended.

    Raises:
        InputError: As for `explain_run`.
    """
    _check(folder)
    return next(_end(folder))


def _check(folder: Path) -> None:
    if reason := why_unreadable(folder / ITERATIONS):
        raise not_a_run_error(folder, f"{ITERATIONS}: {reason}")


def _end(folder: Path) -> Iterator[str]:
    # The lock first: a run that ends meanwhile has then recorded it.
    holder, silent_s = writer_of(folder), _silent_s(folder / LOCK)
    ended = EndRecord.read(folder)
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
    yield f"next: {_advice(ended)}"


def _silent_s(lock: Path) -> float | None:
    """Time since the holder touched a lock, by its host's clock and ours; None if it is gone."""
    touched_s = list[float]()
    for path in lock.glob("*.json"):
        with suppress(FileNotFoundError):
            touched_s.append(path.stat().st_mtime)
    return max(0.0, time.time() - max(touched_s)) if touched_s else None


def _advice(ended: EndRecord) -> str:
    match ended.how:
        case JobOutcome.COMPLETED:
            return "dynapipe-hpc report shows the run; to continue, raise training.iterations"
        case JobOutcome.STOPPED | JobOutcome.INTERRUPTED:
            return _AGAIN
        case JobOutcome.FAILED:
            hints = (hint for pattern, hint in _HINTS if re.search(pattern, ended.message))
            hint = next(hints, "correct what the message names")
            return f"{hint}; then {_AGAIN}"


def _progress(folder: Path) -> Iterator[str]:
    record = None
    for record in iterations_file(folder).records():  # noqa: B007
        pass
    yield f"last iteration: {_described(record) if record else 'none was completed'}"
    folders = (folder / "checkpoints").glob("*")
    done = [int(path.name) for path in folders if re.fullmatch(r"\d{6,}", path.name)]
    yield (
        f"newest checkpoint: after {max(done)} iterations"
        if done
        else "newest checkpoint: none; the run starts again from the beginning"
    )


def _described(record: IterationRecord) -> str:
    loss = "not finite" if math.isnan(record.loss) else f"{record.loss:.4f}"
    return f"{record.iteration} of {record.n_iterations}, ended {record.time}, loss {loss}"
