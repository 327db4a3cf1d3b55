"""Use of the time of a run's ranks, over its traced iterations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline

STEP = "step"


class Use(StrEnum):
    """Kind of work or waiting that takes a rank's time."""

    REAL = "real work"
    PADDING = "padding"
    ACROSS_DOCUMENTS = "attention across documents"
    RECOMPUTED = "recomputation"
    BUBBLE = "bubble"
    TRANSFER = "transfers"
    PLAN = "waiting for plans"
    UPDATE = "update"
    REST = "rest"

    @property
    def css_class(self) -> str:
        return f"use-{self.name.lower().replace('_', '-')}"


UseTimes = Mapping[Use, float]
"""Milliseconds by use, of the average rank in an iteration."""


def rank_time(
    timeline: IterationTimeline, measured_ms: float, waited_ms: float, n_stages: int
) -> UseTimes | None:
    """The time of the average rank by use; the sum is the time of the iteration.

    Rank r executes stage r modulo `n_stages`, and starts when the last rank has its plan. None if
    the trace does not tell what passes computed.
    """
    bars = timeline.measured
    if not bars or any(bar.shares is None for bar in bars if bar.kind in _PASSES):
        return None
    iteration_ms = max(measured_ms, waited_ms + timeline.measured_ms)
    times_ms = dict.fromkeys(Use, 0.0)
    n_ranks = len({bar.rank for bar in bars})
    for use, time_ms in _uses(bars, timeline.measured_ms, n_stages):
        times_ms[use] += time_ms / n_ranks
    times_ms[Use.PLAN] = waited_ms
    times_ms[Use.REST] = iteration_ms - sum(times_ms.values())
    return times_ms


_PASSES = (BarKind.FORWARD, BarKind.BACKWARD)


def _uses(bars: Sequence[Bar], until_ms: float, n_stages: int) -> Iterator[tuple[Use, float]]:
    """Yields uses and their times: of every bar, and of the time after a rank's last bar."""
    sends = {bar.label: bar.start_ms for bar in bars if bar.kind is BarKind.TRANSFER}
    reached: dict[tuple[str, int], float] = {}
    for bar in bars:
        if bar.kind is BarKind.UPDATE:
            group = _update_group(bar, n_stages)
            reached[group] = max(bar.start_ms, reached.get(group, 0.0))
    for bar in bars:
        match bar.kind:
            case BarKind.FORWARD | BarKind.BACKWARD:
                took_ms = bar.end_ms - bar.start_ms
                # In the order of WorkShares.
                uses = (Use.REAL, Use.PADDING, Use.ACROSS_DOCUMENTS, Use.RECOMPUTED)
                for use, share in zip(uses, bar.shares or (), strict=True):
                    yield use, share * took_ms
            case BarKind.TRANSFER:
                yield Use.TRANSFER, bar.end_ms - bar.start_ms
            case BarKind.WAIT:
                # A wait for a send, `a0>!`, finds no start in `sends`: all of it is transfer.
                sent_ms = sends.get(f"{bar.label.removesuffix('<!')}>{bar.rank}", bar.start_ms)
                yield from _divided(bar, sent_ms, Use.TRANSFER)
            case BarKind.UPDATE:
                yield from _divided(bar, reached[_update_group(bar, n_stages)], Use.UPDATE)
    ends_ms: dict[int, float] = {}
    for bar in bars:
        ends_ms[bar.rank] = max(bar.end_ms, ends_ms.get(bar.rank, 0.0))
    yield from ((Use.BUBBLE, until_ms - end_ms) for end_ms in ends_ms.values())


def _divided(bar: Bar, ready_ms: float, use: Use) -> Iterator[tuple[Use, float]]:
    idle_until_ms = min(max(bar.start_ms, ready_ms), bar.end_ms)
    yield Use.BUBBLE, idle_until_ms - bar.start_ms
    yield use, bar.end_ms - idle_until_ms


def _update_group(bar: Bar, n_stages: int) -> tuple[str, int]:
    """Ranks that an update needs: all for the step, those of the same stage for the reduction."""
    return bar.label, 0 if bar.label == STEP else bar.rank % n_stages


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Time of the average rank by use, averaged over some iterations.

    These are iterations of the warm-up if none was traced after it.
    """

    times_ms: Mapping[Use, float]
    real_tokens: float
    n_iterations: int
    in_warm_up: bool

    @property
    def iteration_ms(self) -> float:
        return sum(self.times_ms.values())

    def share(self, use: Use) -> float:
        return self.times_ms[use] / self.iteration_ms


def time_use(
    records: Sequence[IterationRecord],
    n_warm_up: int,
    timelines: Mapping[int, IterationTimeline],
    n_stages: int,
) -> TimeUse | None:
    """The use of time in the traced iterations after the warm-up, or else in all traced ones.

    None if no iteration was traced, or the trace does not tell what passes computed.
    """
    traced = [record for record in records if record.iteration in timelines]
    steady = [each for each in traced if each.iteration - records[0].iteration >= n_warm_up]
    pairs = [
        (r, rank_time(timelines[r.iteration], r.measured_ms, r.waited_ms, n_stages))
        for r in steady or traced
    ]
    known = [(record, times_ms) for record, times_ms in pairs if times_ms is not None]
    if not known:
        return None
    return TimeUse(
        times_ms={use: fmean(times_ms[use] for _, times_ms in known) for use in Use},
        real_tokens=fmean(record.real_tokens for record, _ in known),
        n_iterations=len(known),
        in_warm_up=not steady,
    )
