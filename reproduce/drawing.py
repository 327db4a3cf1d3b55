"""Drawings of figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduce.figure import Row

# The same bytes for the same numbers.
mpl.rcParams["svg.hashsalt"] = "dynapipe-hpc"

COLORS = ("#888888", "#c0a060", "#d08030", "#7060b0", "#3080c0", "#208050", "#b03050", "#404040")
MAX_PER_ROW, WIDEST = 4, 15


WITH_BARS = {"tokens_per_s", "makespan"}
"""Columns of medians over seeds, whose range is in "least" and "most"."""


def draw_lines(
    path: Path,
    panels: Mapping[str, Sequence[Row]],
    x: str,
    y: str,
    x_label: str,
    y_label: str,
    *,
    is_log: bool = True,
) -> None:
    """A panel per model, a line per method; bars from "least" to "most" where `y` has them.

    Args:
        path: The file, SVG or PNG.
        panels: Rows of every panel, by its title; each has a method.
        x: Column of the horizontal axis.
        y: Column of the vertical axis, from 0.
        x_label: Text of the horizontal axis.
        y_label: Text of the vertical axis.
        is_log: Whether the horizontal axis is logarithmic.
    """
    n_rows = -(-len(panels) // MAX_PER_ROW)
    n_columns = -(-len(panels) // n_rows)
    figure = Figure((min(5 * n_columns, WIDEST), 0.6 + 4 * n_rows))
    axes = figure.subplots(n_rows, n_columns, squeeze=False).flatten().tolist()
    names = list(dict.fromkeys(str(row["method"]) for rows in panels.values() for row in rows))
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        for color, name in zip(COLORS, names, strict=False):
            points = [row for row in rows if row["method"] == name]
            values = [float(row[y]) for row in points]
            bars = None
            if y in WITH_BARS:
                below = [v - float(r["least"]) for v, r in zip(values, points, strict=True)]
                above = [float(r["most"]) - v for v, r in zip(values, points, strict=True)]
                bars = (below, above)
            places = [float(row[x]) for row in points]
            axis.errorbar(places, values, bars, marker="o", capsize=3, color=color, label=name)
        scale = "log" if is_log else "linear"
        axis.set(title=title, xlabel=x_label, ylabel=y_label, xscale=scale, ylim=(0, None))
        ticks = sorted({float(row[x]) for row in rows})
        axis.set_xticks(ticks, [f"{tick:,.9g}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    _finish(figure, axes, path)


def draw_bars(path: Path, panels: Mapping[str, Sequence[Row]]) -> None:
    """A panel per title, a bar per method from 0 to its median, with the range over seeds.

    Args:
        path: The file, SVG or PNG.
        panels: Rows of every panel, by its title: method, "tokens_per_s", "least" and "most".
    """
    size = (5 * len(panels), 4.6)
    figure = Figure(size)
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
        for place, (color, row) in enumerate(zip(COLORS, rows, strict=False)):
            value = float(row["tokens_per_s"])
            bar = [[value - float(row["least"])], [float(row["most"]) - value]]
            axis.bar(place, value, yerr=bar, capsize=4, color=color, label=str(row["method"]))
        axis.set(title=title, ylabel="real tokens/s", xticks=[])
        axis.grid(axis="y", alpha=0.3)
    _finish(figure, axes[0], path)


def _finish(figure: Figure, axes: Sequence[Axes], path: Path) -> None:
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncols=3, fontsize=8, frameon=False
    )
    figure.tight_layout(rect=(0, 0.55 / figure.get_figheight(), 1, 1))
    facts = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=130, metadata=facts, bbox_inches="tight")  # long legends, too
