"""SVG figures that take fonts and colours from the page around them."""

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


def draw(name: str, description: str, paint: Callable[[Axes], None]) -> str:
    """Draws a figure with one pair of axes.

    Args:
        name: Name that is unique on the page; it becomes part of the ids inside the figure.
        description: Description of the figure for screen readers.
        paint: Function that draws into the axes.

    Returns:
        The figure as an SVG element.
    """
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
