"""Positions of ranks, which of them probably blocks the others, and their files on disk."""

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from dynapipe_hpc.executor.describe_step import peer_of, shape_of
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import ReduceGradients, StepOptimizer, WaitReceive, WaitSend
from dynapipe_hpc.plan.rank_plan import RankPlan, symbol


class Phase(StrEnum):
    """Phases of a rank, in the order of an iteration, in words."""

    STARTS = "starts"
    WAITS_FOR_PLAN = "waits for its plan"
    COMPARES_PLANS = "compares plans with all ranks"
    EXECUTES = "waits for its device"
    REPORTS = "reports to rank 0"
    SAVES = "writes a checkpoint"


@dataclass(frozen=True, slots=True)
class Standing:
    phase: Phase
    iteration: int
    index: int  # of the instruction that the host executes
    on_device: int  # of the instruction that the device executes, perhaps an earlier one


class Position:
    """Position of a rank, which its watchdog reads.

    It is the `Progress` of a rank that computes on its host.
    """

    def __init__(self) -> None:
        self.plan: RankPlan | None = None
        self.enter(Phase.STARTS, 0)

    def enter(self, phase: Phase, iteration: int) -> None:
        self._phase, self._iteration, self._index, self._on_device = phase, iteration, 0, 0

    def start_plan(self, iteration: int, plan: RankPlan) -> None:
        self.plan = plan
        self.enter(Phase.EXECUTES, iteration)

    def reach(self, index: int, before: object = None) -> None:  # noqa: ARG002
        self._index = self._on_device = index

    def launch(self, index: int) -> None:
        """Records the index of the instruction that the host executes next."""
        self._index = index

    def complete(self, index: int) -> None:
        """Records the index of the first instruction that the device has not completed."""
        self._on_device = index

    def look(self) -> Standing:
        return Standing(self._phase, self._iteration, self._index, self._on_device)


_TICK_S = 0.25


class DeviceProgress:
    """The `Progress` of a rank that computes on a GPU.

    A thread checks which moments the device has reached. The executing thread cannot: it waits in a
    launch when the device is too far behind. Nor can the watchdog, which must not wait for a device
    that hangs.
    """

    def __init__(self, position: Position, has_passed: Callable[[Any], bool]) -> None:
        """Prepares to record in `position`; `has_passed` is the clock's method."""
        self._position = position
        self._has_passed = has_passed
        self._moments: list[Any] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="device progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops, without waiting for a check that does not return."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def reach(self, index: int, before: object) -> None:
        """Records that the host has executed all instructions before `index`; see `Progress`."""
        if index == 0:
            self._moments = []
        self._position.launch(index)
        self._moments.append(before)

    def _follow(self) -> None:
        # A device that fails tells the executing thread, too, which names the instruction.
        with suppress(RuntimeError):
            self._look()

    def _look(self) -> None:
        moments, n_passed = self._moments, 0
        while not self._stopped.wait(_TICK_S):
            if moments is not self._moments:
                moments, n_passed = self._moments, 0
            while n_passed < len(moments) and self._has_passed(moments[n_passed]):
                n_passed += 1
            # The moment before an instruction is the end of the one before.
            self._position.complete(max(n_passed - 1, 0))


_WAITS_FOR_OTHERS = (WaitSend, WaitReceive, ReduceGradients, StepOptimizer)


@dataclass(frozen=True, slots=True)
class RankStatus:
    rank: int
    host: str
    process: str
    for_s: float  # since it last made progress
    place: str  # iteration, instruction by number, name and symbol, micro-batch and peer
    waits: bool  # whether it may be waiting for other ranks


def status_of(
    rank: int, host: str, process: str, *, for_s: float, position: Position, cluster: Cluster
) -> RankStatus:
    """Reads a position; peers are numbered as the job does, not as plans do."""
    standing = position.look()
    phase, index = standing.phase, standing.on_device
    plan = position.plan if phase is Phase.EXECUTES else None
    place = f"iteration {standing.iteration}, "
    if plan is None or index >= len(plan.instructions):
        waits = phase is not Phase.EXECUTES
        return RankStatus(rank, host, process, for_s, place + phase, waits)
    instruction = plan.instructions[index]
    place += "evaluation, " if plan.is_forward_only else ""
    place += f"instruction {index} ({type(instruction).__name__} {symbol(instruction)})"
    place += f", {standing.index} launched" if index < standing.index else ""
    if microbatch := shape_of(plan, instruction):
        place += f", micro-batch {microbatch}"
    if (peer := peer_of(plan, instruction)) is not None:
        place += f", peer {peer * cluster.n_shards + cluster.shard_of(rank)}"
    waits = isinstance(instruction, _WAITS_FOR_OTHERS)
    return RankStatus(rank, host, process, for_s, place, waits)


def suspects_of(statuses: Iterable[RankStatus]) -> list[RankStatus]:
    """All ranks, first those that most probably block the others.

    First come ranks whose processes do not run, then ranks that do not wait for others; among
    equals, the rank without progress for longest.
    """

    def key(where: RankStatus) -> tuple[bool, bool, float, int]:
        does_not_run = where.process in ("stopped", "gone")
        return not does_not_run, where.waits, -where.for_s, where.rank

    return sorted(statuses, key=key)


_MAX_LINES, _MAX_SILENT = 8, 16  # more would be cut out of the middle of a message


def table_of(ranks: Sequence[RankStatus], n_ranks: int) -> str:
    """A table with a line per rank.

    It lists the first of many ranks and counts the rest. Ranks without an answer are named below.
    """
    rows = [("rank", "host", "process", "for [s]", "at")]
    rows += [
        (f"{each.rank}", each.host, each.process, f"{each.for_s:.0f}", each.place)
        for each in ranks[:_MAX_LINES]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(ranks) > _MAX_LINES:
        lines.append(f"{len(ranks) - _MAX_LINES:,} further ranks: see dynapipe-hpc explain")
    if silent := sorted(set(range(n_ranks)) - {where.rank for where in ranks}):
        more = f", ... ({len(silent):,})" if len(silent) > _MAX_SILENT else ""
        lines.append(f"no answer from ranks {', '.join(map(str, silent[:_MAX_SILENT]))}{more}")
    return "\n".join(lines)


HANG = "hang"
_MAIN = threading.main_thread()


def write_hang(run: Path, statuses: Sequence[RankStatus]) -> None:
    """Writes the file of a rank: its status, the statuses of stopped neighbours, and its stack.

    Raises `OSError`.
    """
    path = _path(run, statuses[0].rank)
    path.parent.mkdir(exist_ok=True)
    frame = sys._current_frames().get(_MAIN.ident or 0)
    stack = "".join(traceback.format_stack(frame))
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps({"statuses": list(map(asdict, statuses)), "stack": stack}))
    temporary.replace(path)


def read_hangs(run: Path, ranks: Iterable[int], now_s: float) -> Iterator[RankStatus]:
    """Statuses in the files of ranks; times without progress are counted until `now_s`.

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
    """The current time by the file system's clock, if the rank has just written its file."""
    try:
        return _path(run, rank).stat().st_mtime
    except OSError:
        return time.time()


def _path(run: Path, rank: int) -> Path:
    return run / HANG / f"rank-{rank:05d}.json"
