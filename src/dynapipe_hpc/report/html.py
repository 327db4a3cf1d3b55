"""The report as one self-contained HTML file."""

import io
import os
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.report.comparison import Comparison, n_warm_up
from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.run_folder import (
    EVALUATIONS,
    ITERATIONS,
    MIXTURE,
    TRACE,
    RunFolder,
    write_atomically,
)
from dynapipe_hpc.report.table import MIB, notes, table
from dynapipe_hpc.report.time_use import Use
from dynapipe_hpc.report.timeline import MAX_RANKS, IterationTimeline, measured_svg

# Figures are drawn in these colours; on the page each becomes a variable that dark mode changes.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b0559a", "#b98300", "#3f7fd9")
INK, MUTED, RULE = "#1b1f24", "#59636e", "#d8dee4"
VARIABLES = {colour: f"var(--series-{i})" for i, colour in enumerate(SERIES)} | {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
}
STYLE: dict[Any, Any] = {  # the keys' type is a list of names that grows with matplotlib
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-4, 6),
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
SIZE_INCHES = (5.6, 2.9)


def draw(name: str, description: str, paint: Callable[[Axes], object]) -> str:
    """A figure with one pair of axes, as an SVG element; `name` is unique on the page."""
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        paint(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator")))
    return _for_page(buffer.getvalue(), name, description)


def _for_page(svg: str, name: str, description: str) -> str:
    _, _, body = svg.partition("<svg")
    body = re.sub(r' (width|height)="[\d.]+pt"', "", body, count=2)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{name}-", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return f'<svg role="img" aria-label="{escape(description)}"{body}'


DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = "os^Dvx"
MAX_DOTS = 300

Values = Sequence[float]
Value = Callable[[IterationRecord], float]


def figures(comparison: Comparison) -> list[tuple[str, str]]:
    """Figures of a comparison, by title."""

    def figure(title: str, name: str, paint: Callable[[Axes], object]) -> tuple[str, str]:
        return title, draw(name, f"Figure of {', '.join(comparison.names)}: {title}", paint)

    def curves(y: Value, label: str, **limits: Any) -> Callable[[Axes], object]:
        numbers = [[record.iteration for record in run.kept] for run in comparison.runs]

        def paint(axes: Axes) -> None:
            _curves(axes, comparison, numbers, y)
            axes.set(xlabel="iteration", ylabel=label, **limits)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))

        return paint

    def loss(axes: Axes) -> None:
        _evaluations(axes, comparison)
        curves(lambda r: r.loss, "loss per target token")(axes)

    def loss_by_time(axes: Axes) -> None:
        _curves(axes, comparison, [run.ends_s for run in comparison.runs], lambda r: r.loss)
        axes.set(xlabel="time in iterations [s]", ylabel="loss per target token")
        axes.set_xlim(left=0)

    def rate(axes: Axes) -> None:
        curves(lambda r: r.learning_rate, "learning rate")(axes)
        axes.set_ylim(bottom=0)

    def tokens(axes: Axes) -> None:
        curves(lambda r: r.tokens_per_s, "real tokens [1/s]")(axes)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")

    def dots(point: Callable[[IterationRecord], tuple[float, float]], unit: str) -> Any:
        return lambda axes: _dots(axes, comparison, point, unit)

    norm = curves(lambda r: r.gradient_norm, "gradient norm before clipping")
    padding = curves(lambda r: 100 * r.padding_efficiency, "real of all tokens [%]", ylim=(0, 102))
    time = dots(lambda r: (r.predicted_ms, r.measured_ms), "ms")
    memory = dots(lambda r: (r.predicted_peak_bytes / MIB, r.measured_peak_bytes / MIB), "MiB")
    return [
        figure("Loss by iteration", "loss", loss),
        figure("Loss by training time", "loss-time", loss_by_time),
        figure("Learning rate", "rate", rate),
        figure("Gradient norm", "norm", norm),
        figure("Real tokens per second", "tokens", tokens),
        figure("Padding efficiency", "padding", padding),
        figure("Iteration time, predicted and measured", "time", time),
        figure("Peak memory, predicted and measured", "memory", memory),
    ]


def _curves(
    axes: Axes,
    comparison: Comparison,
    x: Sequence[Values],
    y: Callable[[IterationRecord], float],
) -> None:
    for i, run in enumerate(comparison.runs):
        axes.plot(
            x[i],
            [y(record) for record in run.kept],
            label=run.name,
            color=SERIES[i % len(SERIES)],
            linestyle=DASHES[i % len(DASHES)],
            linewidth=_width(i, len(run.kept)),
            marker="o" if len(run.kept) == 1 else None,
        )
    _legend(axes)


def _evaluations(axes: Axes, comparison: Comparison) -> None:
    for i, (name, evaluations) in enumerate(
        zip(comparison.names, comparison.evaluations, strict=True)
    ):
        if evaluations:
            axes.plot(
                [record.n_done for record in evaluations],
                [record.loss for record in evaluations],
                label=f"{name}, evaluated",
                color=SERIES[i % len(SERIES)],
                linestyle=":",
                linewidth=1.2,
                marker=MARKERS[i % len(MARKERS)],
                markersize=4,
            )


def _width(index: int, n_points: int) -> float:
    """Line width: thin for dense curves, else wider for the first run, as others cover it."""
    if n_points > MAX_DOTS:
        return 0.8
    return 1.5 if index else 2.2


def _dots(
    axes: Axes,
    comparison: Comparison,
    point: Callable[[IterationRecord], tuple[float, float]],
    unit: str,
) -> None:
    for i, run in enumerate(comparison.runs):
        steady = run.kept[n_warm_up(len(run.kept)) :]
        shown = steady[:: -(-len(steady) // MAX_DOTS)]
        predicted, measured = zip(*map(point, shown), strict=True)
        axes.plot(
            predicted,
            measured,
            label=run.name,
            color=SERIES[i % len(SERIES)],
            linestyle="none",
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            alpha=0.6,
            markeredgewidth=0,
        )
    axes.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, zorder=0)
    axes.set(xlabel=f"predicted [{unit}]", ylabel=f"measured [{unit}]")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _legend(axes)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=3)


class Iteration(NamedTuple):
    """One iteration on the page: timeline and drawing of the run with this name."""

    name: str
    timeline: IterationTimeline
    svg: str


def default_page(runs: Sequence[RunFolder]) -> Path:
    """The default page: report.html in the run's folder, or in the common parent of all runs."""
    if len(runs) == 1:
        return runs[0].path / "report.html"
    return Path(os.path.commonpath([run.path.resolve().parent for run in runs])) / "report.html"


def write_page(runs: Sequence[RunFolder], comparison: Comparison, page: Path) -> None:
    """Writes the report as an HTML page; runs are in the order of the comparison."""
    text = _render(runs, comparison, page)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, text)
    except OSError as error:
        raise InputError(
            f"cannot write the report {page}: {error.strerror}; name another file with -o"
        ) from error


def _render(runs: Sequence[RunFolder], comparison: Comparison, page: Path) -> str:
    uses = [(index, times) for index, times in enumerate(comparison.times) if times is not None]
    longest_ms = max((times.iteration_ms for _, times in uses), default=0.0)
    environment = Environment(
        loader=PackageLoader("dynapipe_hpc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        comparison=comparison,
        notes=notes(comparison),
        groups=table(comparison),
        figures=figures(comparison),
        iterations=_iterations(comparison),
        uses=uses,
        longest_ms=longest_ms,
        used=[use for use in Use if any(times.times_ms[use] > 0 for _, times in uses)],
        max_ranks=MAX_RANKS,
        runs=[
            _run(run, name, page.parent) for run, name in zip(runs, comparison.names, strict=True)
        ],
    )


def _iterations(comparison: Comparison) -> list[Iteration]:
    """The last iteration that every run with traces has traced; if there is none, each run's last.

    All charts have one time scale.
    """
    traced = [set(timelines) for timelines in comparison.timelines if timelines]
    common = set.intersection(*traced) if traced else set()
    shown = {
        index: timelines[max(common or timelines)]
        for index, timelines in enumerate(comparison.timelines)
        if timelines
    }
    until_ms = max((max(t.planned_ms, t.measured_ms) for t in shown.values()), default=0.0)
    return [
        Iteration(name, timeline, measured_svg(timeline, until_ms, name))
        for name, timeline in ((comparison.names[index], each) for index, each in shown.items())
    ]


def _run(run: RunFolder, name: str, page_folder: Path) -> dict[str, object]:
    """A run folder for the page; each file is a pair of its name and relative URL."""
    address = os.path.relpath(run.path.resolve(), page_folder.resolve())
    files = ("config.toml", "machine.json", MIXTURE, ITERATIONS, EVALUATIONS, TRACE, "plans")
    return {
        "name": name,
        "config": run.config,
        "machine": run.machine.items(),
        "files": [(f, quote(f"{address}/{f}")) for f in files if (run.path / f).exists()],
    }
