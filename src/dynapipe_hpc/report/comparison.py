"""Comparison of runs: their differences, gains and a table, as text and for the page."""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median
from typing import Any

from dynapipe_hpc.report.records import EvaluationRecord, IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder, read_mixture
from dynapipe_hpc.report.time_use import TimeUse, Use, time_use
from dynapipe_hpc.report.timeline import IterationTimeline

MAX_KEPT = 1 << 15
N_WARM_UP = 3


def n_warm_up(n_iterations: int) -> int:
    """Number of warm-up iterations, not counted as steady: three, but at most a quarter."""
    return min(N_WARM_UP, n_iterations // 4)


@dataclass(slots=True)
class Totals:
    n_iterations: int = 0
    n_samples: int = 0
    n_skipped: int = 0
    waited_ms: float = 0.0
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0

    def add(self, record: IterationRecord) -> None:
        self.n_iterations += 1
        self.n_samples += record.n_samples
        self.n_skipped += not math.isfinite(record.gradient_norm)
        self.waited_ms += record.waited_ms
        self.predicted_peak_bytes = max(self.predicted_peak_bytes, record.predicted_peak_bytes)
        self.measured_peak_bytes = max(self.measured_peak_bytes, record.measured_peak_bytes)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in numbers; medians are over its steady iterations.

    If a run has more than `MAX_KEPT` iterations, every 2nd, or every 4th, ... is kept. `totals` are
    over all iterations, `steady` over those after the warm-up; `ends_s` is the time spent in
    iterations up to the end of each kept iteration.
    """

    name: str
    totals: Totals
    steady: Totals
    kept: tuple[IterationRecord, ...]
    ends_s: tuple[float, ...]
    first: IterationRecord
    last: IterationRecord

    def typical(self, value: Callable[[IterationRecord], float]) -> float:
        """The median over the kept iterations after the warm-up."""
        return median(map(value, self.kept[n_warm_up(len(self.kept)) :]))

    @property
    def real_tokens_per_s(self) -> float:
        return self.typical(lambda r: r.tokens_per_s)

    @property
    def padding_efficiency(self) -> float:
        return self.typical(lambda r: r.padding_efficiency)

    @property
    def measured_ms(self) -> float:
        return self.typical(lambda r: r.measured_ms)

    @property
    def time_error(self) -> float:
        return self.typical(lambda r: relative_difference(r.predicted_ms, r.measured_ms))

    @property
    def peak_error(self) -> float:
        """Median error of predicted peak memory; NaN if memory was not measured."""
        return self.typical(
            lambda r: relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes)
        )


def summarise(name: str, records: Iterable[IterationRecord]) -> RunSummary:
    """Reads iterations, at least one, in ascending order."""
    remaining = iter(records)
    start = list(islice(remaining, 4 * N_WARM_UP))
    totals, steady, end_s, stride = Totals(), Totals(), 0.0, 1
    kept: list[tuple[IterationRecord, float]] = []
    for k, record in enumerate(chain(start, remaining)):
        totals.add(record)
        if k >= n_warm_up(len(start)):
            steady.add(record)
        end_s += record.measured_ms / 1e3
        # By iteration number, so that the same iterations of two runs are kept.
        if record.iteration % stride == 0:
            kept.append((record, end_s))
        if len(kept) > MAX_KEPT:
            stride *= 2
            kept = [kept[0], *(each for each in kept[1:] if each[0].iteration % stride == 0)]
        last = record
    of_kept, ends_s = zip(*kept, strict=True)
    return RunSummary(name, totals, steady, of_kept, ends_s, start[0], last)


def relative_difference(value: float, reference: float) -> float:
    """|value - reference| / |reference|; NaN where the reference is 0."""
    return abs(value - reference) / abs(reference) if reference else math.nan


def largest_loss_difference(
    run: Sequence[IterationRecord], reference: Sequence[IterationRecord]
) -> float:
    """Largest relative difference of loss at equal iterations; NaN if there are none, or one is."""
    expected = {record.iteration: record.loss for record in reference}
    differences = [
        relative_difference(record.loss, expected[record.iteration])
        for record in run
        if record.iteration in expected
    ]
    if not differences or any(map(math.isnan, differences)):
        return math.nan
    return max(differences)


NOTHING = "–"


def percent(share: float) -> str:
    """A share in per cent with one digit; a dash for NaN."""
    return NOTHING if math.isnan(share) else f"{100 * share:.1f}"


Settings = Mapping[str, Any]
"""Values by their names in a configuration, such as planner.batch.rule."""


def settings_of(run: RunFolder) -> Settings:
    return dict(_flat(tomllib.loads(run.config), ""))


def n_stages_of(settings: Settings) -> int:
    """Number of pipeline stages; 1 if the configuration does not tell."""
    n_stages = settings.get("cluster.n_stages")
    return n_stages if type(n_stages) is int and n_stages > 0 else 1


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# Runs are compared to judge layouts and planners, so other settings of these tables may differ.
_EQUAL_TABLES = ("data.", "model.")
_EQUAL_KEYS = ("training.dtype", "training.threads", "training.loss_weighting")
_CHOSEN_TABLES = ("planner.", "cluster.", "executor.", "training.")
_CHOSEN_KEYS = ("model.layers_per_stage",)
_LEFT_OUT = {*_CHOSEN_KEYS}
_FACTS = ("ranks", "device", "processor")


def differences(runs: Sequence[RunFolder], names: Sequence[str]) -> tuple[str, ...]:
    """Lines about facts that should be equal but are not: data, model, dtype, ranks, devices."""
    return _lines([dict(_facts(run)) for run in runs], names, missing="not known")


def choices(runs: Sequence[RunFolder], names: Sequence[str]) -> tuple[str, ...]:
    """Lines about other settings in which runs differ: how they are planned, placed and trained.

    Runs that do not have a setting are left out of its line.
    """
    return _lines([dict(_choices(run)) for run in runs], names, missing="")


def _facts(run: RunFolder) -> Iterator[tuple[str, str]]:
    for name, value in settings_of(run).items():
        if (name.startswith(_EQUAL_TABLES) and name not in _LEFT_OUT) or name in _EQUAL_KEYS:
            yield name, str(value)
    for name in _FACTS:
        if name in run.machine:
            yield name, str(run.machine[name])
    # The samples of an evaluation may follow from the number of iterations.
    evaluations = run.evaluations()
    yield "evaluated", f"{evaluations[-1].tokens:,} target tokens" if evaluations else "nothing"


def _choices(run: RunFolder) -> Iterator[tuple[str, str]]:
    for name, value in settings_of(run).items():
        is_chosen = name.startswith(_CHOSEN_TABLES) or name in _CHOSEN_KEYS
        if is_chosen and name not in _EQUAL_KEYS:
            yield name, str(value)


def _lines(
    runs: Sequence[Mapping[str, str]], names: Sequence[str], *, missing: str
) -> tuple[str, ...]:
    keys = dict.fromkeys(key for run in runs for key in run)
    lines = (_line(key, [run.get(key, missing) for run in runs], names) for key in keys)
    return tuple(line for line in lines if line)


def _line(key: str, values: Sequence[str], names: Sequence[str]) -> str:
    """A line that says which runs have which value; empty if all have the same."""
    named: dict[str, list[str]] = {}
    for value, name in zip(values, names, strict=True):
        named.setdefault(value, []).append(name)
    if len(named) == 1:
        return ""
    parts = [f"{value} in {', '.join(n)}" for value, n in named.items() if value]
    return f"{key}: {'; '.join(parts)}"


MIN_SHARE = 0.01
"""Smallest difference that is reported, as a fraction of the other run's time."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of a run in real tokens per second over the best other run, and why, if known."""

    claim: str
    why: str

    def __str__(self) -> str:
        return f"{self.claim}: {self.why}" if self.why else self.claim


def gain(
    summaries: Sequence[RunSummary], times: Sequence[TimeUse | None], subject: int | None
) -> Gain | None:
    """Compares `subject`, by default the fastest run, with the best other run, if any."""
    if len(summaries) == 1:
        return None
    by_speed = sorted(range(len(summaries)), key=lambda i: -summaries[i].real_tokens_per_s)
    subject = by_speed[0] if subject is None else subject
    best = next(i for i in by_speed if i != subject)
    winner, other = summaries[subject], summaries[best]
    ratio = winner.real_tokens_per_s / other.real_tokens_per_s
    others = "the best of the other runs" if len(summaries) > 2 else "the other run"
    claim = (
        f"{winner.name} processes {ratio:.2f}x the real tokens per second of {other.name}, {others}"
    )
    of_own, of_other = times[subject], times[best]
    if of_own is None or of_other is None or of_own.in_warm_up or of_other.in_warm_up:
        return Gain(claim, "")
    return Gain(claim, _why(of_own, of_other, other.name))


def _why(subject_use: TimeUse, other: TimeUse, other_name: str) -> str:
    scale = other.real_tokens / subject_use.real_tokens / other.iteration_ms
    changes = {use: subject_use.times_ms[use] * scale - other.share(use) for use in Use}
    by_sign = {"less": _large(changes, -1), "more": _large(changes, 1)}
    parts = [f"{word} on {_listed(uses)}" for word, uses in by_sign.items() if uses]
    if not parts:
        return ""
    n = min(subject_use.n_iterations, other.n_iterations)
    traced = f"{n} traced iterations" if n > 1 else "one traced iteration"
    return (
        f"per token of {traced} it spends {' and '.join(parts)}; "
        f"shares are of the time of {other_name}"
    )


def _large(changes: Mapping[Use, float], sign: int) -> list[tuple[Use, float]]:
    sizes = [(use, sign * change) for use, change in changes.items()]
    large = [(use, size) for use, size in sizes if size >= MIN_SHARE]
    return sorted(large, key=lambda each: -each[1])


def _listed(uses: Sequence[tuple[Use, float]]) -> str:
    return ", ".join(f"{use} ({100 * size:.0f} %)" for use, size in uses)


LARGE_ERROR = 0.3
"""Median error of predicted times at which measured costs no longer describe the run."""
MAX_DRAWS = 2**53


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of runs side by side: numbers of each, compared with the first; lines about all."""

    runs: tuple[RunSummary, ...]
    evaluations: tuple[tuple[EvaluationRecord, ...], ...]
    differences: tuple[str, ...]
    disturbed: tuple[str, ...]
    choices: tuple[str, ...]
    mixtures: tuple[str, ...]
    timelines: tuple[Mapping[int, IterationTimeline], ...]
    times: tuple[TimeUse | None, ...]
    gain: Gain | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(run.name for run in self.runs)

    def speed_up(self, index: int) -> float:
        return self.runs[index].real_tokens_per_s / self.runs[0].real_tokens_per_s

    def loss_difference(self, index: int) -> float:
        """Largest relative difference of a run's loss from the first run's at equal steps."""
        return largest_loss_difference(self.runs[index].kept, self.runs[0].kept)


def compare(runs: Sequence[RunFolder]) -> Comparison:
    names = _names(runs)
    summaries = tuple(summarise(name, run.records()) for name, run in zip(names, runs, strict=True))
    timelines = tuple(
        {timeline.iteration: timeline for timeline in run.timelines()} for run in runs
    )
    settings = [settings_of(run) for run in runs]
    times = tuple(
        time_use(each.kept, n_warm_up(len(each.kept)), traced, n_stages_of(setting))
        for each, traced, setting in zip(summaries, timelines, settings, strict=True)
    )
    dynamic = [
        i for i, setting in enumerate(settings) if setting.get("planner.batch.rule") == "dynamic"
    ]
    return Comparison(
        runs=summaries,
        evaluations=tuple(tuple(run.evaluations()) for run in runs),
        differences=differences(runs, names),
        disturbed=tuple(
            f"{run.name}: predictions are off by {percent(run.time_error)} % (median)"
            for run, setting in zip(summaries, settings, strict=True)
            if setting.get("planner.cost.kind") == "profiled" and run.time_error > LARGE_ERROR
        ),
        choices=choices(runs, names),
        mixtures=tuple(
            f"{each.name}: {line}"
            for run, each in zip(runs, summaries, strict=True)
            if (mixture := read_mixture(run.path))
            for line in mixture.describe(max(0, min(each.totals.n_samples, MAX_DRAWS)))
        ),
        timelines=timelines,
        times=times,
        gain=gain(summaries, times, dynamic[0] if len(dynamic) == 1 else None),
    )


def _names(runs: Sequence[RunFolder]) -> tuple[str, ...]:
    count = Counter(run.name for run in runs)
    return tuple(run.name if count[run.name] == 1 else str(run.path) for run in runs)
