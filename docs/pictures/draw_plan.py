"""Draws docs/pictures/plan.svg: a plan for samples of lengths as in instruction data.

.venv/bin/python docs/pictures/draw_plan.py
"""

import sys
from pathlib import Path

import numpy as np

from dynapipe_hpc import AnalyticConfig, Cluster, GptShape, Placement, plan_iteration
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.plan_svg import plan_svg


def example() -> list[RankPlan]:
    """A GPT of 24 layers on four stages, 48 samples of 10 to 2,048 tokens."""
    lengths = np.random.default_rng(3).lognormal(np.log(160), 1.1, 48).clip(10, 2048).astype(int)
    shape = GptShape(
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


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("plan.svg")
    target.write_text(plan_svg(example()), encoding="utf-8")
