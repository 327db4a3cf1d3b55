"""The table of a comparison: quantities down, runs across; as text, and in rows for the page."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

from dynapipe_hpc.report.comparison import NOTHING, Comparison, RunSummary, percent
from dynapipe_hpc.report.records import EvaluationRecord
from dynapipe_hpc.report.time_use import Use

MIB = 2**20
MAX_TASKS = 20

Evaluations = Sequence[EvaluationRecord]


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    unit: str
    cells: tuple[str, ...]


def table(comparison: Comparison) -> list[list[Row]]:
    makers = (_speed, _time_use, _prediction, _planning, _loss)
    groups = [*(make(comparison) for make in makers), [*evaluation_rows(comparison.evaluations)]]
    return [group for group in groups if group]


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
    for title, lines in notes(comparison):
        parts.append("\n".join([title, *(f"  {each}" for each in lines)]))
    if comparison.gain:
        parts.append(str(comparison.gain))
    return "\n\n".join(parts)


def notes(comparison: Comparison) -> list[tuple[str, Sequence[str]]]:
    """Lines of text about the runs, by title."""
    lines_of = {
        "mixtures of datasets:": comparison.mixtures,
        "one sample alone lengthens iterations of:": outliers(comparison),
        "warning: measured costs did not foresee these runs; was the machine busy?": (
            comparison.disturbed
        ),
        "warning: these runs differ in more than how they train:": comparison.differences,
        "these runs differ in:": comparison.choices,
    }
    return [(title, lines) for title, lines in lines_of.items() if lines]


Quantity = tuple[str, str, Callable[[float], str], Callable[[RunSummary], float]]
"""Label, unit, a function that formats a value, and a function that gets the value."""


def _rows(comparison: Comparison, *quantities: Quantity) -> list[Row]:
    return [
        Row(label, unit, tuple(write(value(run)) for run in comparison.runs))
        for label, unit, write, value in quantities
    ]


def _typical(name: str) -> Callable[[RunSummary], float]:
    return lambda run: run.typical(attrgetter(name))


def _speed(comparison: Comparison) -> list[Row]:
    rows = _rows(
        comparison,
        ("real tokens per second", "1/s", "{:,.0f}".format, lambda r: r.real_tokens_per_s),
        ("padding efficiency", "%", percent, lambda r: r.padding_efficiency),
        ("micro-batches per iteration", "", "{:g}".format, _typical("n_microbatches")),
    )
    if len(comparison.names) > 1:
        speed_ups = map(comparison.speed_up, range(len(comparison.names)))
        unit = f"x {comparison.names[0]}"
        rows.insert(1, Row("speed-up", unit, tuple(f"{s:.2f}" for s in speed_ups)))
    return rows


def _time_use(comparison: Comparison) -> list[Row]:
    """Shares of ranks' time, for each use that occurs in a run; empty if no run has times."""
    known = [times for times in comparison.times if times is not None]
    if not known:
        return []

    def cells(use: Use) -> tuple[str, ...]:
        return tuple(NOTHING if t is None else percent(t.share(use)) for t in comparison.times)

    used = [use for use in Use if any(times.times_ms[use] > 0 for times in known)]
    first, *others = [Row(f"  {use}", "%", cells(use)) for use in used]
    return [Row(f"time of ranks, {first.label.strip()}", "%", first.cells), *others]


def _prediction(comparison: Comparison) -> list[Row]:
    return _rows(
        comparison,
        ("iteration time, measured", "ms", _number, lambda r: r.measured_ms),
        ("iteration time, predicted", "ms", _number, _typical("predicted_ms")),
        ("  median error", "%", percent, lambda r: r.time_error),
        ("  longest critical path", "%", percent, _typical("longest_trip_share")),
        ("peak activations, measured", "MiB", _mib, lambda r: r.steady.measured_peak_bytes),
        ("peak activations, predicted", "MiB", _mib, lambda r: r.steady.predicted_peak_bytes),
        ("  median error", "%", percent, lambda r: r.peak_error),
    )


def _planning(comparison: Comparison) -> list[Row]:
    return _rows(
        comparison,
        ("planning one iteration", "ms", _number, _typical("planning_ms")),
        ("waited for plans, total", "ms", _number, lambda r: r.totals.waited_ms),
        ("  after the warm-up", "ms", _number, lambda r: r.steady.waited_ms),
        ("plans ahead, median", "", "{:g}".format, _typical("plans_ahead")),
    )


def _loss(comparison: Comparison) -> list[Row]:
    rows = _rows(
        comparison,
        ("iterations", "", "{:,}".format, lambda r: r.totals.n_iterations),
        ("  of them steady", "", "{:,}".format, lambda r: r.steady.n_iterations),
        ("  skipped updates", "", "{:,}".format, lambda r: r.totals.n_skipped),
        ("loss, first", "", "{:.4f}".format, lambda r: r.first.loss),
        ("loss, last", "", "{:.4f}".format, lambda r: r.last.loss),
    )
    if not any(run.totals.n_skipped for run in comparison.runs):
        del rows[2]
    if len(comparison.names) > 1:
        unit = f"relative to {comparison.names[0]}"
        cells = tuple(_difference(comparison, index) for index in range(len(comparison.names)))
        rows.append(Row("loss, largest difference", unit, cells))
    return rows


def evaluation_rows(runs: Sequence[Evaluations]) -> Iterator[Row]:
    """Rows about evaluations, ascending; none if no run has any.

    The losses of tasks are from the last evaluation; only the largest of many tasks are shown.
    """
    if not any(runs):
        return

    def row(label: str, unit: str, cell: Callable[[Evaluations], str | None]) -> Row:
        return Row(label, unit, tuple((run and cell(run)) or NOTHING for run in runs))

    def of_pairs(name: str, scale: float, form: str) -> Callable[[Evaluations], str | None]:
        def cell(run: Evaluations) -> str | None:
            means = run[-1].preferences
            return format(scale * getattr(means, name), form) if means else None

        return cell

    def of_task(name: str) -> Callable[[Evaluations], str | None]:
        return lambda run: f"{run[-1].tasks[name].loss:.4f}" if name in run[-1].tasks else None

    yield row("evaluations", "", lambda run: f"{len(run):,}")
    yield row("  time of all", "ms", lambda run: f"{sum(r.took_ms for r in run):,.0f}")
    yield row("evaluated loss, first", "", lambda run: f"{run[0].loss:.4f}")
    yield row("evaluated loss, last", "", lambda run: f"{run[-1].loss:.4f}")
    yield row("evaluated loss, lowest", "", lambda run: f"{lowest(run).loss:.4f}")
    yield row("  after iterations", "", lambda run: f"{lowest(run).n_done:,}")
    yield row(
        "perplexity, last",
        "",
        lambda run: None if run[-1].preferences else f"{run[-1].perplexity:,.4g}",
    )
    if any(run and run[-1].preferences for run in runs):
        yield row("accuracy of preferences, last", "%", of_pairs("accuracy", 100, ".1f"))
        yield row("margin of rewards, last", "", of_pairs("margin", 1, ".4f"))
    for name in _largest_tasks([run[-1] for run in runs if run]):
        yield row(f"  loss of {name}", "", of_task(name))


def lowest(run: Evaluations) -> EvaluationRecord:
    """The evaluation with the lowest loss, the first of equals; NaN is never the lowest."""
    return min(run, key=lambda record: (record.loss != record.loss, record.loss))


def _largest_tasks(last: Evaluations) -> list[str]:
    tokens = Counter[str]()
    for record in last:
        tokens.update({name: task.tokens for name, task in record.tasks.items()})
    largest = {name for name, _ in tokens.most_common(MAX_TASKS)}
    return [name for name in tokens if name in largest]


def _difference(comparison: Comparison, index: int) -> str:
    difference = comparison.loss_difference(index)
    return NOTHING if index == 0 or math.isnan(difference) else f"{difference:.1e}"


def _number(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"


def _mib(n_bytes: float) -> str:
    return _number(n_bytes / MIB)


def outliers(comparison: Comparison) -> list[str]:
    """A line per run in which some iterations are longer because of one long sample."""
    lines = []
    for run in comparison.runs:
        lengthened = [record for record in run.kept if record.has_outlier]
        if lengthened:
            worst = max(lengthened, key=lambda record: record.outlier_ms)
            lines.append(
                f"{run.name}: in {len(lengthened):,} of {len(run.kept):,} iterations, by "
                f"{_number(fmean(r.outlier_ms for r in lengthened))} ms on average; most by sample "
                f"{worst.outlier_sample} ({worst.outlier_tokens:,} tokens) in iteration "
                f"{worst.iteration}: {_number(worst.outlier_ms)} of "
                f"{_number(worst.predicted_ms)} ms predicted"
            )
    return lines
