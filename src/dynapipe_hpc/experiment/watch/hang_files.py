"""The folder hang of a run: what each rank that makes no progress knows about itself and others."""

import json
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from dynapipe_hpc.experiment.watch.rank_status import RankStatus

HANG = "hang"
_MAIN = threading.main_thread()


def write_hang(run: Path, statuses: Sequence[RankStatus]) -> None:
    """Writes the file of a rank: its status first, then of neighbours that cannot write; its stack.

    A rank that is stopped is told of by others of its host. Raises `OSError`.
    """
    path = _path(run, statuses[0].rank)
    path.parent.mkdir(exist_ok=True)
    frame = sys._current_frames().get(_MAIN.ident or 0)
    stack = "".join(traceback.format_stack(frame))
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps({"statuses": list(map(asdict, statuses)), "stack": stack}))
    temporary.replace(path)


def read_hangs(run: Path, ranks: Iterable[int], now_s: float) -> Iterator[RankStatus]:
    """Statuses in the files of ranks, as they are by the clock of the file system.

    Each file is looked for once, by its name: a client of NFS may keep lists of a folder for half
    a minute, but asks its server for a name that it does not know.
    """
    for rank in ranks:
        path = _path(run, rank)
        try:
            age_s = max(0.0, now_s - path.stat().st_mtime)
            statuses = json.loads(path.read_text())["statuses"]
            of_ranks = [RankStatus(**status) for status in statuses]
        except (OSError, ValueError, TypeError, KeyError):
            continue
        yield from (replace(status, for_s=status.for_s + age_s) for status in of_ranks)


def describe_hangs(run: Path) -> Iterator[str]:
    """A line per rank that has written a file, and its stack."""
    for path in sorted((run / HANG).glob("rank-*.json")):
        try:
            content = json.loads(path.read_text())
            status, stack = RankStatus(**content["statuses"][0]), str(content["stack"])
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            continue
        yield f"rank {status.rank} on {status.host} at {status.place}:"
        yield from stack.splitlines()


def remove_hang(run: Path, rank: int) -> None:
    """Removes the file of a rank that makes progress again. Raises `OSError`."""
    _path(run, rank).unlink(missing_ok=True)


def now_of_files(run: Path, rank: int) -> float:
    """The time by the file system's clock when a rank has just written its file."""
    try:
        return _path(run, rank).stat().st_mtime
    except OSError:
        return time.time()


def _path(run: Path, rank: int) -> Path:
    return run / HANG / f"rank-{rank:05d}.json"
