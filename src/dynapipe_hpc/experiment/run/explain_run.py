"""Explanation and view of a run folder: how it ended or stands, how far it got, what to try."""

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input, why_unreadable
from dynapipe_hpc.experiment.run_lock import PATIENCE_S, SINCE, writer_of
from dynapipe_hpc.experiment.watch.rank_status import describe_hangs
from dynapipe_hpc.job.ranks import JobOutcome
from dynapipe_hpc.report.records import IterationRecord, duration, short
from dynapipe_hpc.report.run_folder import (
    ENDED,
    ITERATIONS,
    LOCK,
    iterations_file,
    not_a_run_error,
    timelines_file,
)
from dynapipe_hpc.report.timeline import measured_strip

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
"""Patterns of messages, and advice for them, the most telling first."""


def explain_run(folder: Path) -> str:
    """Explains how a run ended, or that it has not, from what it left in its folder."""
    _check(folder)
    return "\n".join((*_end(folder), *_progress(folder), *describe_hangs(folder)))


def _check(folder: Path) -> None:
    if reason := why_unreadable(folder / ITERATIONS):
        raise not_a_run_error(folder, f"{ITERATIONS}: {reason}")


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
    yield f"next: {_advice(ended)}"


def _silent_s(lock: Path) -> float | None:
    """Time from a holder's last touch (its clock) to now (ours); None if the lock is gone."""
    touched_s = list[float]()
    for path in lock.glob("*.json"):
        with suppress(FileNotFoundError):
            touched_s.append(path.stat().st_mtime)
    return max(0.0, time.time() - max(touched_s)) if touched_s else None


def _advice(ended: EndRecord) -> str:
    match ended.how:
        case JobOutcome.COMPLETED:
            return "dynapipe-hpc report shows the run; to continue, make it longer in [training]"
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


N_CURVE = 60
"""Iterations in the curve of the loss."""
MAX_BYTES = 1 << 17
"""Most bytes that are read at the end of iterations.jsonl: more than `N_CURVE` lines."""
MAX_TIMELINE_BYTES = 1 << 24
WIDTH = 40
_LEVELS = "▁▂▃▄▅▆▇█"


def live_view(folder: Path) -> list[str]:
    """Lines of at most 100 columns, apart from names: progress, numbers, ranks, and state."""
    _check(folder)
    state = next(_end(folder))
    return [str(folder), *_now(folder), *_ranks(folder), state]


def _now(folder: Path) -> Iterator[str]:
    last = iterations_file(folder).last(N_CURVE, MAX_BYTES)
    if not last:
        yield "no iteration is done yet"
        return
    now = last[-1]
    n_done, n = now.iteration + 1, now.n_iterations
    bar = "#" * (WIDTH * n_done // n)
    left, tokens = duration(now.seconds_left), short(now.tokens)
    yield f"[{bar:.<{WIDTH}}] {n_done:,} of {n:,} iterations, {left} left, {tokens} tokens"
    yield f"loss {_number(now.loss, '.4f')} {_curve([each.loss for each in last])}"
    yield (
        f"lr {_number(now.learning_rate, '.2e')}, norm {_number(now.gradient_norm, '.3g')}, "
        f"{short(now.tokens_per_s)} tok/s, {100 * now.padding_efficiency:.0f} % real, bubble "
        f"{_number(now.bubble_share, '.0%')}"
    )
    yield (
        f"iteration {now.measured_ms:,.0f} ms, predicted {now.predicted_ms:,.0f} ms, critical path "
        f"{now.longest_trip_share:.0%}; {now.plans_ahead} plans ahead; activations at most "
        f"{now.measured_peak_bytes / 1e6:,.1f} MB"
    )


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _curve(values: Sequence[float]) -> str:
    """A character per value, higher for larger values; a blank for a value that is not finite."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    steps = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((v - low) * steps)] if math.isfinite(v) else " " for v in values)


def _ranks(folder: Path) -> Iterator[str]:
    for timeline in timelines_file(folder).last(1, MAX_TIMELINE_BYTES):
        yield f"ranks in iteration {timeline.iteration}, the last one traced:"
        yield from measured_strip(timeline)
