"""Comparison of runs: their differences, gains and a table, as text and for the page."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.evaluation_lines import evaluation_lines
from dynapipe_hpc.report.evaluation_record import EvaluationRecord
from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.mixture_file import read_mixture
from dynapipe_hpc.report.rank_time import Use
from dynapipe_hpc.report.recorded import n_warm_up, read_recorded
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.settings import (
    has_measured_costs,
    is_dynamic,
    n_stages_of,
    settings_of,
)
from dynapipe_hpc.report.throughput import RunSummary, largest_loss_difference, summarise
from dynapipe_hpc.report.time_use import TimeUse, time_use
from dynapipe_hpc.report.timeline import IterationTimeline

# Runs are compared to judge layouts and planners, so other settings of these tables may differ.
_EQUAL_TABLES = ("data.", "model.")
_EQUAL_KEYS = ("training.dtype", "training.threads", "training.loss_weighting")
_CHOSEN_TABLES = ("planner.", "cluster.", "executor.", "training.")
_CHOSEN_KEYS = ("model.layers_per_stage",)
_LEFT_OUT = {"data.verify", *_CHOSEN_KEYS}
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
"""Smallest difference that is told, as a fraction of the other run's time."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The real tokens per second of a run over those of the best other run, and why, if known."""

    claim: str
    why: str

    def __str__(self) -> str:
        """Claim and reason in one sentence."""
        return f"{self.claim}: {self.why}" if self.why else self.claim


def gain(
    summaries: Sequence[RunSummary], times: Sequence[TimeUse | None], subject: int | None
) -> Gain | None:
    """Compares a run, the fastest without `subject`, with the best of the others, if any."""
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
    """Uses on which a real token takes less or more time than in the other run."""
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
    """Uses with a change of this sign that is large enough to be told, the largest first."""
    sizes = [(use, sign * change) for use, change in changes.items()]
    large = [(use, size) for use, size in sizes if size >= MIN_SHARE]
    return sorted(large, key=lambda each: -each[1])


def _listed(uses: Sequence[tuple[Use, float]]) -> str:
    return ", ".join(f"{use} ({100 * size:.0f} %)" for use, size in uses)


MIB = 2**20
LARGE_ERROR = 0.3
"""Median error of predicted times from which measured costs do not describe the run."""
NOTHING = "–"
UNLIKE = "warning: these runs differ in more than how they train:"
CHOICES = "these runs differ in:"
DISTURBED = "warning: measured costs did not foresee these runs; was the machine busy?"
MAX_DRAWS = 2**53
MIXTURES = "mixtures of datasets:"
OUTLIERS = "one sample alone lengthens iterations of:"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a quantity with its unit, one cell per run."""

    label: str
    unit: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results of several runs side by side; of each what `Recorded` keeps, and lines about all."""

    names: tuple[str, ...]
    records: tuple[tuple[IterationRecord, ...], ...]
    evaluations: tuple[tuple[EvaluationRecord, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]
    summaries: tuple[RunSummary, ...]
    baseline: int
    differences: tuple[str, ...]
    disturbed: tuple[str, ...]
    choices: tuple[str, ...]
    mixtures: tuple[str, ...]
    timelines: tuple[Mapping[int, IterationTimeline], ...]
    times: tuple[TimeUse | None, ...]
    gain: Gain | None

    def speed_up(self, index: int) -> float:
        """Real tokens per second of a run over those of the baseline."""
        reference = self.summaries[self.baseline].real_tokens_per_s
        return self.summaries[index].real_tokens_per_s / reference

    def loss_difference(self, index: int) -> float:
        """Largest relative difference of a run's loss from the baseline's at equal steps."""
        return largest_loss_difference(self.records[index], self.records[self.baseline])


def compare(runs: Sequence[RunFolder], baseline: str | None = None) -> Comparison:
    """Compares runs, with the first or the one called `baseline`."""
    names = _names(runs)
    if baseline is not None and baseline not in names:
        raise InputError(f"no run is called '{baseline}'; name one of {', '.join(names)}")
    recorded = [read_recorded(run.records()) for run in runs]
    summaries = tuple(map(summarise, names, recorded))
    timelines = tuple(
        {timeline.iteration: timeline for timeline in run.timelines()} for run in runs
    )
    settings = [settings_of(run) for run in runs]
    times = tuple(
        time_use(each.kept, n_warm_up(len(each.kept)), traced, n_stages_of(setting))
        for each, traced, setting in zip(recorded, timelines, settings, strict=True)
    )
    dynamic = [i for i, setting in enumerate(settings) if is_dynamic(setting)]
    return Comparison(
        names=names,
        records=tuple(run.kept for run in recorded),
        evaluations=tuple(tuple(run.evaluations()) for run in runs),
        ends_s=tuple(run.ends_s for run in recorded),
        summaries=summaries,
        baseline=0 if baseline is None else names.index(baseline),
        differences=differences(runs, names),
        disturbed=tuple(
            f"{run.name}: predictions are off by {_percent(run.time_error)} % (median)"
            for run, setting in zip(summaries, settings, strict=True)
            if has_measured_costs(setting) and run.time_error > LARGE_ERROR
        ),
        choices=choices(runs, names),
        mixtures=tuple(
            f"{name}: {line}"
            for run, name, each in zip(runs, names, recorded, strict=True)
            if (mixture := read_mixture(run.path))
            for line in mixture.describe(max(0, min(each.totals.n_samples, MAX_DRAWS)))
        ),
        timelines=timelines,
        times=times,
        gain=gain(summaries, times, dynamic[0] if len(dynamic) == 1 else None),
    )


def table(comparison: Comparison) -> list[list[Row]]:
    """Rows of the table in groups: speed, use of time, prediction, planning, losses."""
    makers = (_speed, _time_use, _prediction, _planning, _loss, _evaluation)
    return [group for make in makers if (group := make(comparison))]


def text_table(comparison: Comparison) -> str:
    """The table as text, quantities down, runs across, units last; then differences and gain."""
    groups = table(comparison)
    label_width = max(len(row.label) for group in groups for row in group)
    widths = [
        max(len(name), *(len(row.cells[i]) for group in groups for row in group))
        for i, name in enumerate(comparison.names)
    ]

    def line(label: str, cells: Sequence[str], unit: str) -> str:
        columns = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        return f"{label.ljust(label_width)}  {columns}  {unit}".rstrip()

    parts = [line("", comparison.names, "")]
    parts += ["\n".join(line(r.label, r.cells, r.unit) for r in group) for group in groups]
    sections = (
        (MIXTURES, comparison.mixtures),
        (OUTLIERS, outliers(comparison)),
        (DISTURBED, comparison.disturbed),
        (UNLIKE, comparison.differences),
        (CHOICES, comparison.choices),
    )
    for title, lines in sections:
        if lines:
            parts.append("\n".join([title, *(f"  {each}" for each in lines)]))
    if comparison.gain:
        parts.append(str(comparison.gain))
    return "\n\n".join(parts)


def _names(runs: Sequence[RunFolder]) -> tuple[str, ...]:
    """Folder names, or paths if two folders have the same name."""
    count = Counter(run.name for run in runs)
    return tuple(run.name if count[run.name] == 1 else str(run.path) for run in runs)


def _speed(comparison: Comparison) -> list[Row]:
    runs = comparison.summaries
    rows = [
        Row("real tokens per second", "1/s", tuple(f"{r.real_tokens_per_s:,.0f}" for r in runs)),
        Row("padding efficiency", "%", tuple(_percent(r.padding_efficiency) for r in runs)),
        Row("micro-batches per iteration", "", tuple(f"{r.n_microbatches:g}" for r in runs)),
    ]
    if len(runs) > 1:
        speed_ups = map(comparison.speed_up, range(len(runs)))
        unit = f"x {comparison.names[comparison.baseline]}"
        rows.insert(1, Row("speed-up", unit, tuple(f"{s:.2f}" for s in speed_ups)))
    return rows


def _time_use(comparison: Comparison) -> list[Row]:
    """Shares of the time of ranks; none if no run tells them, and no use that no run has."""
    known = [times for times in comparison.times if times is not None]
    if not known:
        return []

    def cells(use: Use) -> tuple[str, ...]:
        return tuple(NOTHING if t is None else _percent(t.share(use)) for t in comparison.times)

    used = [use for use in Use if any(times.times_ms[use] > 0 for times in known)]
    first, *others = [Row(f"  {use}", "%", cells(use)) for use in used]
    return [Row(f"time of ranks, {first.label.strip()}", "%", first.cells), *others]


def _prediction(comparison: Comparison) -> list[Row]:
    runs = comparison.summaries
    return [
        Row("iteration time, measured", "ms", tuple(_number(r.measured_ms) for r in runs)),
        Row("iteration time, predicted", "ms", tuple(_number(r.predicted_ms) for r in runs)),
        Row("  median error", "%", tuple(_percent(r.time_error) for r in runs)),
        Row(
            "  longest sample's own trip", "%", tuple(_percent(r.longest_trip_share) for r in runs)
        ),
        Row("peak activations, measured", "MiB", tuple(_mib(r.measured_peak_bytes) for r in runs)),
        Row(
            "peak activations, predicted", "MiB", tuple(_mib(r.predicted_peak_bytes) for r in runs)
        ),
        Row("  median error", "%", tuple(_percent(r.peak_error) for r in runs)),
    ]


def _planning(comparison: Comparison) -> list[Row]:
    runs = comparison.summaries
    return [
        Row("planning one iteration", "ms", tuple(_number(r.planning_ms) for r in runs)),
        Row("waited for plans, total", "ms", tuple(_number(r.waited_ms) for r in runs)),
        Row("  after the warm-up", "ms", tuple(_number(r.steady_waited_ms) for r in runs)),
        Row("plans ahead, median", "", tuple(f"{r.plans_ahead:g}" for r in runs)),
    ]


def _loss(comparison: Comparison) -> list[Row]:
    runs = comparison.summaries
    rows = [
        Row("iterations", "", tuple(f"{r.n_iterations:,}" for r in runs)),
        Row("  of them steady", "", tuple(f"{r.n_steady:,}" for r in runs)),
        Row("loss, first", "", tuple(f"{r.first_loss:.4f}" for r in runs)),
        Row("loss, last", "", tuple(f"{r.last_loss:.4f}" for r in runs)),
    ]
    if any(r.n_skipped for r in runs):
        rows.insert(2, Row("  skipped updates", "", tuple(f"{r.n_skipped:,}" for r in runs)))
    if len(runs) > 1:
        unit = f"relative to {comparison.names[comparison.baseline]}"
        cells = tuple(_difference(comparison, index) for index in range(len(runs)))
        rows.append(Row("loss, largest difference", unit, cells))
    return rows


def _evaluation(comparison: Comparison) -> list[Row]:
    return [Row(*line) for line in evaluation_lines(comparison.evaluations, NOTHING)]


def _difference(comparison: Comparison, index: int) -> str:
    difference = comparison.loss_difference(index)
    same = index == comparison.baseline
    return NOTHING if same or math.isnan(difference) else f"{difference:.1e}"


def _number(value: float) -> str:
    """A number with three or more significant digits."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"


def _mib(n_bytes: int) -> str:
    return _number(n_bytes / MIB)


def outliers(comparison: Comparison) -> list[str]:
    """A line per run in which single samples alone lengthen iterations."""
    lines = []
    for name, records in zip(comparison.names, comparison.records, strict=True):
        lengthened = [record for record in records if record.has_outlier]
        if lengthened:
            worst = max(lengthened, key=lambda record: record.outlier_ms)
            lines.append(
                f"{name}: in {len(lengthened):,} of {len(records):,} iterations, by "
                f"{_number(fmean(r.outlier_ms for r in lengthened))} ms on average; most by sample "
                f"{worst.outlier_sample} ({worst.outlier_tokens:,} tokens) in iteration "
                f"{worst.iteration}: {_number(worst.outlier_ms)} of "
                f"{_number(worst.predicted_ms)} ms predicted"
            )
    return lines


def _percent(share: float) -> str:
    return NOTHING if math.isnan(share) else f"{100 * share:.1f}"
