"""Draws docs/pictures/plan.svg and compare.svg: plans for lengths as in instruction data.

.venv/bin/python docs/pictures/draw_pictures.py
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dynapipe_hpc import AnalyticConfig, Cluster, GptShape, Placement, Planner
from dynapipe_hpc.data.lengths_file import samples_of_lengths
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.baselines.config import PackedBalancedConfig
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.config import BatchConfig, PlannerConfig
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.report.timeline import compare_svg, plan_svg

PACKED = PackedBalancedConfig(rule="packed_balanced")
BOTH_LAYOUTS = DynamicConfig(layouts=("padded", "packed"))


def plans_of(batch: BatchConfig, schedule: ScheduleConfig) -> list[RankPlan]:
    """Plans of a GPT of 24 layers on four stages for 48 samples of 10 to 2,048 tokens."""
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
    config = PlannerConfig(cost=rates, batch=batch, schedule=schedule)
    planner = Planner.from_config(
        config, rates, shape, placement, cluster=cluster, max_tokens=shape.max_tokens
    )
    return planner.make_plans(0, samples_of_lengths([(n, 0) for n in lengths.tolist()]))


def example() -> list[RankPlan]:
    """The plan of padded micro-batches."""
    return plans_of(DynamicConfig(), ScheduleConfig())


def comparison() -> Mapping[str, list[RankPlan]]:
    """The same samples packed with 1F1B and planned with all layouts, by title."""
    one_f_one_b, split = ScheduleConfig(rules=("1f1b",)), ScheduleConfig(split_backward=True)
    panels = {
        "Sequence packing of balanced work, 1F1B": plans_of(PACKED, one_f_one_b),
        "dynapipe-hpc": plans_of(BOTH_LAYOUTS, split),
    }
    times_ms = {title: plans[0].prediction.iteration_ms for title, plans in panels.items()}
    return {f"{title}: {times_ms[title]:.0f} ms": plans for title, plans in panels.items()}


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (target / "plan.svg").write_text(plan_svg(example()), encoding="utf-8")
    (target / "compare.svg").write_text(compare_svg(comparison()), encoding="utf-8")
