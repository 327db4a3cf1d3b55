"""Drawing of the plans of an iteration: an SVG file of its own."""

import math
from collections.abc import Iterator, Mapping, Sequence

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.timeline import planned_bars

WIDTH, LEFT, LANE, GAP, TITLE = 1000, 60, 44, 6, 28
MIN_LABEL = 52
_LIGHTNESS = {"F": 82, "B": 62, "I": 62, "W": 48}  # by first letter of a pass
STYLE = "text{font:11px sans-serif;fill:#1b1f24}.axis{fill:#59636e}.title{font-weight:bold}"


def plan_svg(plans: Sequence[RankPlan]) -> str:
    """An SVG with a lane per rank; forward passes are light, backward passes dark.

    Args:
        plans: Plans of all ranks for one iteration, by rank; at least one.
    """
    return compare_svg({"": plans})


def compare_svg(panels: Mapping[str, Sequence[RankPlan]]) -> str:
    """An SVG of several plans for the same samples, one below the other, on one time scale.

    Args:
        panels: Plans of all ranks for one iteration, by title; at least one.
    """
    until_ms = max(plans[0].prediction.iteration_ms for plans in panels.values())
    per_ms = (WIDTH - LEFT) / until_ms
    lanes: list[str] = []
    top = 0
    for title, plans in panels.items():
        if title:
            lanes.append(f'<text class="title" x="0" y="{top + TITLE - 8}">{title}</text>')
            top += TITLE
        for plan in plans:
            lanes += _lane(plan, _name(plan, plans), top, per_ms)
            top += LANE + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 24}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{top + 24}" fill="#fff"/>',
        *lanes,
        *_axis(until_ms, per_ms, top),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _name(plan: RankPlan, plans: Sequence[RankPlan]) -> str:
    return f"rank {plan.rank}" if plans[-1].replica else f"stage {plan.stage}"


def _lane(plan: RankPlan, name: str, top: int, per_ms: float) -> Iterator[str]:
    yield f'<text x="0" y="{top + LANE / 2 + 4:g}">{name}</text>'
    for bar in planned_bars(plan):
        x, width = LEFT + bar.start_ms * per_ms, (bar.end_ms - bar.start_ms) * per_ms
        microbatch = bar.microbatch or 0
        colour = f"hsl({microbatch * 47 % 360},60%,{_LIGHTNESS[bar.label[0]]}%)"
        yield (
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE}" '
            f'fill="{colour}" stroke="#fff"/>'
        )
        if width >= MIN_LABEL:
            yield (
                f'<text x="{x + width / 2:.1f}" y="{top + LANE / 2 + 4:g}" '
                f'text-anchor="middle">{_shape(plan.microbatches[microbatch])}</text>'
            )


def _shape(microbatch: MicroBatch) -> str:
    if isinstance(microbatch, PackedRow):
        return f"{microbatch.row_tokens}"
    return f"{microbatch.n_rows} × {microbatch.row_tokens}"


def _axis(until_ms: float, per_ms: float, bottom: int) -> Iterator[str]:
    step_ms = 10.0 ** math.floor(math.log10(until_ms / 2))
    for i in range(int(until_ms / step_ms) + 1):
        label = f"{i * step_ms:g}" if i else "0 ms"
        yield (
            f'<text class="axis" x="{LEFT + i * step_ms * per_ms:.1f}" y="{bottom + 16}" '
            f'text-anchor="middle">{label}</text>'
        )
