"""Plans of batches with very long samples: with slices, against whole samples.

    python benchmarks/long_tails.py [--json OUT.json]

Predicted iterations of a Llama 3 8B in packed rows with split backward passes, three modes of
recomputation, default effort, by the estimates of the presets of A100-80GB and H100; layers are so
placed that stages have about as much work. Lengths are drawn from 90 % lognormal (median 400
tokens, sigma 1) and 10 % Pareto (from 2,000 tokens on, exponent 1), cut at a maximum, until a batch
has its tokens. Batches "with" begin with one sample of three quarters of the maximum; others are as
drawn. Those "of Megatron" are lognormal between 128 tokens and the maximum, with a mean of 1,024
and a sigma of 1.5, as in Megatron-LM's examples of dynamic context parallelism, one node per
replica.

`whole` and `slices` are predicted times over the work of the busiest stage, `balanced` and `budget`
those of the rules of today (one packed row per micro-batch of about the same work; padded rows up
to a number of tokens), with the same schedules, and the best size and recomputation for every
batch. `gain` is `whole` over `slices`; all are geometric means over the batches, the least gain
behind it. `over work` is the time with slices over the larger of the work and the longest sample's
own work on a stage. `ms` is the processor time of planning with slices, the median over batches,
and `times` what it takes of that without.
"""

import argparse
import time
import tomllib
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from statistics import geometric_mean, median
from typing import Literal, NamedTuple

import numpy as np

from dynapipe_hpc.architecture.decoder import LlamaShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.lengths_file import samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.baselines.config import (
    PackedBalancedConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.slice_rule import SliceSetting
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.rules import schedule_rules
from measured import print_table, write_json

PRESETS = Path(__file__).parents[1] / "configs" / "clusters"
SHAPE = LlamaShape(
    n_layers=32,
    hidden_size=4096,
    n_heads=32,
    n_kv_heads=8,
    ffn_size=14336,
    vocab_size=128256,
    max_tokens=131072,
)
# The head takes as long as two and a half layers.
PLACEMENTS = {4: Placement((9, 9, 8, 6)), 8: Placement((4, 5, 5, 4, 4, 4, 4, 2))}
RULES = schedule_rules(ScheduleConfig(split_backward=True))
N_WITH, N_DRAWN = 6, 20


class Point(NamedTuple):
    """Batches of one kind on one machine."""

    gpu: str
    max_tokens: int
    batch_tokens: int
    n_stages: int
    kind: Literal["with", "as drawn", "of Megatron"]
    n_replicas: int = 1

    def __str__(self) -> str:
        ranks = (
            f"{self.n_stages}" if self.n_replicas == 1 else f"{self.n_replicas} x {self.n_stages}"
        )
        return f"{self.gpu}, {self.kind}: {self.max_tokens:,}; {self.batch_tokens:,}; {ranks}"


POINTS = [
    Point("a100_80gb", 2048, 65536, 4, kind="as drawn"),
    Point("a100_80gb", 8192, 65536, 4, kind="as drawn"),
    *(
        Point("a100_80gb", longest, 262144, n_stages, kind="with")
        for n_stages in (4, 8)
        for longest in (8192, 16384, 32768, 65536)
    ),
    Point("a100_80gb", 65536, 1048576, 8, kind="with"),
    Point("a100_80gb", 65536, 262144, 8, kind="as drawn"),
    Point("h100", 65536, 262144, 8, kind="with"),
    Point("a100_80gb", 8192, 65536, 4, kind="of Megatron"),
    Point("a100_80gb", 8192, 65536, 8, kind="of Megatron"),
    Point("a100_80gb", 8192, 262144, 8, kind="of Megatron", n_replicas=4),
    Point("a100_80gb", 8192, 524288, 8, kind="of Megatron", n_replicas=8),
]
BASELINES = (
    PackedBalancedConfig(rule="packed_balanced", tokens_per_microbatch="tuned"),
    TokenBudgetConfig(rule="token_budget", tokens_per_microbatch="tuned"),
)

COLUMNS = {
    "balanced": "{:.3f}",
    "budget": "{:.3f}",
    "whole": "{:.3f}",
    "slices": "{:.3f}",
    "gain": "{:.2f}",
    "least gain": "{:.2f}",
    "over work": "{:.3f}",
    "ms": "{:.0f}",
    "times": "{:.2f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {str(point): measured(point) for point in POINTS}
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


def measured(point: Point) -> dict[str, float]:
    cost, cluster = machine(point)
    rows = [compared(samples, cost, cluster) for samples in batches(point)]
    return {name: geometric_mean(row[name] for row in rows) for name in rows[0]} | {
        "least gain": min(row["gain"] for row in rows),
        "ms": median(row["ms"] for row in rows),
    }


def compared(samples: list[Sample], cost: CostModel, cluster: Cluster) -> dict[str, float]:
    (whole, whole_ms), (sliced, sliced_ms) = (
        planned(samples, cost, cluster, each) for each in ("off", "auto")
    )
    # Each at its best setting.
    by_rules = [Baseline(rule, RULES, cost, cluster).choose(samples) for rule in BASELINES]
    balanced_ms, budget_ms = (choice.best.iteration_ms for choice in by_rules)
    work, slices_ms = work_ms(sliced, cost), sliced.best.iteration_ms
    return {
        "balanced": balanced_ms / work,
        "budget": budget_ms / work,
        "whole": whole.best.iteration_ms / work,
        "slices": slices_ms / work,
        "gain": whole.best.iteration_ms / slices_ms,
        "over work": slices_ms / max(work, longest_ms(samples, cost)),
        "ms": sliced_ms,
        "times": sliced_ms / whole_ms,
    }


def machine(point: Point) -> tuple[CostModel, Cluster]:
    """Estimates of a preset, and its cluster."""
    presets = [
        tomllib.loads((PRESETS / f"{point.gpu}{suffix}.toml").read_text())
        for suffix in ("", f"_1x{point.n_stages}", *["_4x8"][: point.n_replicas - 1])
    ]
    rates = reduce(or_, (each["planner"]["cost"] for each in presets))
    tables = reduce(or_, (each["cluster"] for each in presets))
    cluster = Cluster.model_validate(tables | {"n_replicas": point.n_replicas})
    config = AnalyticConfig.model_validate({**rates, "element_bytes": 2})
    return analytic_cost(SHAPE, PLACEMENTS[point.n_stages], cluster, config), cluster


def batches(point: Point) -> Iterator[list[Sample]]:
    for seed in range(N_WITH if point.kind == "with" else N_DRAWN):
        stream = np.random.default_rng(seed)
        lengths = [point.max_tokens * 3 // 4] if point.kind == "with" else []
        while True:
            length = drawn_length(point, stream)
            if sum(lengths) + length > point.batch_tokens:
                break
            lengths.append(length)
        yield samples_of_lengths([(0, length) for length in lengths])


def drawn_length(point: Point, stream: np.random.Generator) -> int:
    if point.kind == "of Megatron":
        drawn, least = stream.lognormal(np.log(1024) - 1.5**2 / 2, 1.5), 128
    elif stream.random() < 0.1:
        drawn, least = 2000 * (stream.pareto(1.0) + 1), 8
    else:
        drawn, least = stream.lognormal(np.log(400), 1), 8
    return max(least, min(int(drawn), point.max_tokens))


def planned(
    samples: list[Sample], cost: CostModel, cluster: Cluster, slices: SliceSetting
) -> tuple[Choice, float]:
    """The plan, and the processor time that it takes in ms."""
    batch = DynamicConfig(layouts=("packed",), slices=slices)
    chooser = dynamic_chooser(batch, SearchConfig(), RULES, cost=cost, cluster=cluster)
    started_s = time.thread_time()
    choice = chooser.choose(samples)
    return choice, 1e3 * (time.thread_time() - started_s)


def work_ms(choice: Choice, cost: CostModel) -> float:
    """Work of the busiest stage in a plan, shared by the replicas."""
    stages = sum(microbatch_costs(p.microbatches, cost).work_ms.sum(0) for p in choice.pipelines)
    return float(np.max(stages)) / len(choice.pipelines)


def longest_ms(samples: list[Sample], cost: CostModel) -> float:
    """Own work of the longest sample on the busiest stage, without recomputation."""
    longest = max(sample.tokens for sample in samples)
    shapes = Shapes.padded(np.ones(1), np.full(1, float(longest)), np.zeros(1))
    return float(cost.stage_costs(shapes).work_ms.max())


if __name__ == "__main__":
    main()
