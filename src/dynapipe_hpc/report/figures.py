"""Figures of the report: curves over the iterations of several runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dynapipe_hpc.report.comparison import MIB, Comparison
from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.recorded import n_warm_up
from dynapipe_hpc.report.svg import MUTED, SERIES, draw

DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = "os^Dvx"
MAX_DOTS = 300

Values = Sequence[float]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its title; `svg` is an SVG element."""

    title: str
    svg: str


def figures(comparison: Comparison) -> list[Drawing]:
    """Figures of training, throughput, padding and predictions of all runs."""
    return [
        Drawing("Loss by iteration", _loss_by_iteration(comparison)),
        Drawing("Loss by training time", _loss_by_time(comparison)),
        Drawing("Learning rate", _learning_rate(comparison)),
        Drawing("Gradient norm", _gradient_norm(comparison)),
        Drawing("Real tokens per second", _throughput(comparison)),
        Drawing("Padding efficiency", _padding(comparison)),
        Drawing("Iteration time, predicted and measured", _time(comparison)),
        Drawing("Peak memory, predicted and measured", _memory(comparison)),
    ]


def _loss_by_iteration(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _evaluations(axes, comparison)
        _by_iteration(axes, comparison, lambda r: r.loss)
        axes.set(ylabel="loss per target token")

    return draw("loss", f"Loss by iteration of {_all(comparison)}", paint)


def _loss_by_time(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _curves(axes, comparison, comparison.ends_s, lambda r: r.loss)
        axes.set(xlabel="time in iterations [s]", ylabel="loss per target token")
        axes.set_xlim(left=0)

    return draw("loss-time", f"Loss by training time of {_all(comparison)}", paint)


def _learning_rate(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _by_iteration(axes, comparison, lambda r: r.learning_rate)
        axes.set(ylabel="learning rate")
        axes.set_ylim(bottom=0)

    return draw("rate", f"Learning rate by iteration of {_all(comparison)}", paint)


def _gradient_norm(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _by_iteration(axes, comparison, lambda r: r.gradient_norm)
        axes.set(ylabel="gradient norm before clipping")

    return draw("norm", f"Gradient norm by iteration of {_all(comparison)}", paint)


def _throughput(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _by_iteration(axes, comparison, lambda r: r.tokens_per_s)
        axes.set(ylabel="real tokens [1/s]")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")

    return draw("tokens", f"Real tokens per second by iteration of {_all(comparison)}", paint)


def _padding(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _by_iteration(axes, comparison, lambda r: 100 * r.padding_efficiency)
        axes.set(ylabel="real of all tokens [%]", ylim=(0, 102))

    return draw("padding", f"Share of real tokens by iteration of {_all(comparison)}", paint)


def _time(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _dots(axes, comparison, lambda r: (r.predicted_ms, r.measured_ms))
        axes.set(xlabel="predicted [ms]", ylabel="measured [ms]")

    return draw("time", f"Predicted and measured iteration time of {_all(comparison)}", paint)


def _memory(comparison: Comparison) -> str:
    def paint(axes: Axes) -> None:
        _dots(
            axes, comparison, lambda r: (r.predicted_peak_bytes / MIB, r.measured_peak_bytes / MIB)
        )
        axes.set(xlabel="predicted [MiB]", ylabel="measured [MiB]")

    return draw("memory", f"Predicted and measured peak memory of {_all(comparison)}", paint)


def _by_iteration(
    axes: Axes, comparison: Comparison, y: Callable[[IterationRecord], float]
) -> None:
    numbers = [[record.iteration for record in records] for records in comparison.records]
    _curves(axes, comparison, numbers, y)
    axes.set(xlabel="iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _curves(
    axes: Axes,
    comparison: Comparison,
    x: Sequence[Values],
    y: Callable[[IterationRecord], float],
) -> None:
    """One line per run, dashed from the second on, so that equal curves remain visible."""
    for i, (name, records) in enumerate(zip(comparison.names, comparison.records, strict=True)):
        axes.plot(
            x[i],
            [y(record) for record in records],
            label=name,
            color=SERIES[i % len(SERIES)],
            linestyle=DASHES[i % len(DASHES)],
            linewidth=_width(i, len(records)),
            marker="o" if len(records) == 1 else None,
        )
    _legend(axes)


def _evaluations(axes: Axes, comparison: Comparison) -> None:
    """A dotted line with a mark per evaluation, in the colour of the run."""
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
    """Line width: thin for dense curves; otherwise the first run's is wider, to show below."""
    if n_points > MAX_DOTS:
        return 0.8
    return 1.5 if index else 2.2


def _dots(
    axes: Axes, comparison: Comparison, point: Callable[[IterationRecord], tuple[float, float]]
) -> None:
    """One dot per steady iteration, on the diagonal if the prediction is right."""
    for i, (name, records) in enumerate(zip(comparison.names, comparison.records, strict=True)):
        steady = records[n_warm_up(len(records)) :]
        shown = steady[:: -(-len(steady) // MAX_DOTS)]
        predicted, measured = zip(*map(point, shown), strict=True)
        axes.plot(
            predicted,
            measured,
            label=name,
            color=SERIES[i % len(SERIES)],
            linestyle="none",
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            alpha=0.6,
            markeredgewidth=0,
        )
    axes.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, zorder=0)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _legend(axes)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=3)


def _all(comparison: Comparison) -> str:
    return ", ".join(comparison.names)
