"""Draws docs/pictures/plan.svg: a plan for samples of lengths as in instruction data.

.venv/bin/python docs/pictures/draw_plan.py
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dynapipe_hpc import AnalyticConfig, Cluster, ModelShape, Placement, plan_iteration
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.plan.instruction import Backward, Forward
from dynapipe_hpc.plan.rank_plan import RankPlan

WIDTH, LEFT, LANE, GAP = 1000, 60, 44, 6
LEAST_LABEL = 52
STYLE = "text{font:11px sans-serif;fill:#1b1f24}.axis{fill:#59636e}"


def example() -> list[RankPlan]:
    """A GPT of 24 layers on four stages, 48 samples of 10 to 2,048 tokens."""
    lengths = np.random.default_rng(3).lognormal(np.log(160), 1.1, 48).clip(10, 2048).astype(int)
    shape = ModelShape(
        n_layers=24,
        hidden_size=2048,
        n_heads=16,
        ffn_size=8192,
        vocab_size=50304,
        max_tokens=2048,
    )
    cluster = Cluster(n_stages=4, device_memory_bytes="16GB")
    rates = AnalyticConfig(flops_per_ms=1e11, memory_bytes_per_ms=1e9, element_bytes=2)
    placement = Placement((7, 7, 6, 4))  # the last stage also has the head
    return plan_iteration(lengths, shape, cluster, rates, placement=placement)


def drawing(plans: Sequence[RankPlan]) -> str:
    """An SVG with a lane per rank; forward passes light, backward passes dark."""
    until_ms = plans[0].prediction.iteration_ms
    per_ms = (WIDTH - LEFT) / until_ms
    bottom = len(plans) * (LANE + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 24}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{bottom + 24}" fill="#fff"/>',
        *(line for plan in plans for line in _lane(plan, per_ms)),
        *_axis(until_ms, per_ms, bottom),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _lane(plan: RankPlan, per_ms: float) -> Iterator[str]:
    top = plan.rank * (LANE + GAP)
    yield f'<text x="0" y="{top + LANE / 2 + 4:g}">stage {plan.stage}</text>'
    passes = [each for each in plan.instructions if isinstance(each, Forward | Backward)]
    for each, (start_ms, end_ms) in zip(passes, plan.prediction.passes_ms, strict=True):
        x, width = LEFT + start_ms * per_ms, (end_ms - start_ms) * per_ms
        lightness = 82 if isinstance(each, Forward) else 62
        colour = f"hsl({each.microbatch * 47 % 360},60%,{lightness}%)"
        yield (
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE}" '
            f'fill="{colour}" stroke="#fff"/>'
        )
        if width >= LEAST_LABEL:
            shape = _shape(plan.microbatches[each.microbatch])
            yield (
                f'<text x="{x + width / 2:.1f}" y="{top + LANE / 2 + 4:g}" '
                f'text-anchor="middle">{shape}</text>'
            )


def _shape(microbatch: MicroBatch) -> str:
    return f"{microbatch.n_rows} × {microbatch.row_tokens}"


def _axis(until_ms: float, per_ms: float, bottom: int) -> Iterator[str]:
    step = 10 ** int(np.log10(until_ms / 2))
    for ms in range(0, int(until_ms) + 1, step):
        label = f"{ms} ms" if ms == 0 else f"{ms}"
        yield (
            f'<text class="axis" x="{LEFT + ms * per_ms:.1f}" y="{bottom + 16}" '
            f'text-anchor="middle">{label}</text>'
        )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("plan.svg")
    target.write_text(drawing(example()), encoding="utf-8")
