"""Preference pairs that share their prompt: rate on one core, and plans against tuned rules.

    python benchmarks/preference_pairs.py [--json OUT.json]

Rates are of passes of a GPT of width 256 with 4 layers on one core, forward and backward with the
loss, in float32: rows of pairs with their prompt once, and packed rows of the same answers behind a
copy of the prompt each. `share` is the part of a pair's tokens that is its prompt; answers are
equally long. Both are measured in turn, and the median is taken; `gain` is the ratio of times.

Plans are of a Llama 3 8B by the estimates of the preset of A100-80GB, packed rows, three modes of
recomputation, default effort. Lengths of prompts and answers are lognormal (medians 300 and 200
tokens, sigma 1), and pairs are at most 8,192 tokens. `rules` is the best of the packed rules of
today at their best size for every batch, `planned` the dynamic plan; both are predicted times over
the work of the busiest stage, geometric means over batches, and `gain` is their ratio.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from statistics import geometric_mean, median
from typing import NamedTuple

import numpy as np
import torch

from dynapipe_hpc.architecture.gpt import GptShape
from dynapipe_hpc.data.microbatch import PackedRow, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.tokens.collate import IntegerArray, IterationTokens
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.baselines.config import (
    PackedBalancedConfig,
    PackedNextFitConfig,
)
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_row import packed_microbatch
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.training.config import PreferenceLossConfig
from dynapipe_hpc.training.objective import Objective, WeightedTokens
from dynapipe_hpc.training.preferences import PreferenceLoss
from long_tails import Point, machine
from measured import print_table, write_json

SHAPE = GptShape(
    n_layers=4, hidden_size=256, n_heads=4, ffn_size=1024, vocab_size=2048, max_tokens=4096
)
N_TIMES, N_PAIRS, PAIR_TOKENS, N_BATCHES = 9, 3, 1024, 8
DPO = PreferenceLossConfig("dpo", 0.1)
RULES = (
    PackedBalancedConfig(rule="packed_balanced", tokens_per_microbatch="tuned"),
    PackedNextFitConfig(rule="packed_next_fit", tokens_per_microbatch="tuned"),
)
POINTS = [(65536, 4, 1), (262144, 8, 1), (262144, 4, 4)]
"""Tokens of a batch, stages and replicas."""
MAX_TOKENS = 8192


class AnyTokens:
    """Random tokens of every sample."""

    def read(self, sample_id: int, inputs: int, targets: int) -> tuple[IntegerArray, IntegerArray]:
        stream = np.random.default_rng(sample_id)
        return stream.integers(0, 2048, inputs), stream.integers(0, 2048, targets)

    def rejected(self, sample_id: int, n_tokens: int) -> IntegerArray:
        return np.random.default_rng((sample_id, 1)).integers(0, 2048, n_tokens)

    def first_token(self, sample_id: int) -> int:
        return sample_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rates = {f"share {share:.2f}": rate(share) for share in (0.25, 0.5, 0.75)}
    print_table(rates, {"shared ms": "{:.0f}", "copies ms": "{:.0f}", "gain": "{:.2f}"})
    plans = {
        f"{tokens:,} tokens; {stages} stages x {replicas}": planned(tokens, stages, replicas)
        for tokens, stages, replicas in POINTS
    }
    columns = dict.fromkeys(("rules", "planned", "gain", "least gain"), "{:.3f}")
    print_table(plans, columns)
    if arguments.json:
        write_json(arguments.json, rates | plans)


class Timed(NamedTuple):
    """Passes over a row."""

    shared: Callable[[], None]
    copies: Callable[[], None]


def rate(share: float) -> dict[str, float]:
    """Times of both passes over the same pairs, with their prompt once and twice."""
    prompt = int(share * PAIR_TOKENS)
    answer = (PAIR_TOKENS - prompt) // 2
    timed = passes(prompt, answer)
    times: dict[str, list[float]] = {"shared": [], "copies": []}
    for _ in range(N_TIMES):
        for name, run in timed._asdict().items():
            start_s = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start_s))
    shared, copies = median(times["shared"]), median(times["copies"])
    return {"shared ms": shared, "copies ms": copies, "gain": copies / shared}


def passes(prompt: int, answer: int) -> Timed:
    layers = range(SHAPE.n_layers)
    module = family_of(SHAPE)(SHAPE, layers, first=True, last=True)
    reader = AnyTokens()
    pairs = [Sample(i, prompt, answer, rejected_tokens=answer) for i in range(N_PAIRS)]
    weights = dict.fromkeys(range(N_PAIRS), 1 / N_PAIRS)
    of_pairs = IterationTokens(
        {pair.sample_id: pair for pair in pairs}, weights, reader, 0, rejected=reader.rejected
    )
    row = packed_microbatch(pairs, Recompute.NONE)
    objective = PreferenceLoss(DPO, torch.zeros(N_PAIRS, 2, dtype=torch.float64))
    copies = [Sample(i, prompt, answer) for i in range(2 * N_PAIRS)]
    of_copies = IterationTokens(
        {copy.sample_id: copy for copy in copies},
        dict.fromkeys(range(2 * N_PAIRS), 1 / N_PAIRS),
        reader,
        0,
    )
    offsets = tuple(accumulate((copy.tokens for copy in copies), initial=0))
    twice = PackedRow(tuple(range(2 * N_PAIRS)), offsets[-1], offsets)

    def run(microbatch: PackedRow, tokens: IterationTokens, loss: Objective) -> None:
        batch = module.collate(microbatch, tokens)
        losses = module.run(None, batch, Recompute.NONE)
        torch.autograd.backward(loss.loss(losses, batch.tokens))

    return Timed(
        lambda: run(row, of_pairs, objective), lambda: run(twice, of_copies, WeightedTokens())
    )


def planned(batch_tokens: int, n_stages: int, n_replicas: int) -> dict[str, float]:
    """Times of plans over the work of the busiest stage."""
    point = Point("a100_80gb", MAX_TOKENS, batch_tokens, n_stages, "as drawn", n_replicas)
    cost, cluster = machine(point)
    rules = schedule_rules(ScheduleConfig(split_backward=True))
    dynamic = dynamic_chooser(
        DynamicConfig(layouts=("packed",)), SearchConfig(), rules, cost=cost, cluster=cluster
    )
    of_rules, of_plans = [], []
    for samples in batches(batch_tokens):
        choice = dynamic.choose(samples)
        work = work_ms(choice, cost, cluster)
        others = (Baseline(rule, rules, cost, cluster).choose(samples) for rule in RULES)
        of_rules.append(min(other.best.iteration_ms for other in others) / work)
        of_plans.append(choice.best.iteration_ms / work)
    gains = [a / b for a, b in zip(of_rules, of_plans, strict=True)]
    return {
        "rules": geometric_mean(of_rules),
        "planned": geometric_mean(of_plans),
        "gain": geometric_mean(gains),
        "least gain": min(gains),
    }


def batches(batch_tokens: int) -> Iterator[list[Sample]]:
    for seed in range(N_BATCHES):
        stream = np.random.default_rng(seed)
        samples: list[Sample] = []
        left = batch_tokens
        while True:
            drawn = stream.lognormal(np.log([300, 200, 200]), 1).astype(int) + 1
            prompt, chosen, rejected = np.minimum(drawn, MAX_TOKENS // 3).tolist()
            left -= prompt + chosen + rejected
            if left < 0:
                break
            samples.append(Sample(len(samples), prompt, chosen, rejected_tokens=rejected))
        yield samples


def work_ms(choice: Choice, cost: CostModel, cluster: Cluster) -> float:
    """Work of the busiest stage of a plan, shared out over replicas."""
    microbatches = [m for pipeline in choice.pipelines for m in pipeline.microbatches]
    of_stages = microbatch_costs(microbatches, cost).work_ms.sum(axis=0)
    return float(of_stages.max()) / cluster.n_replicas


if __name__ == "__main__":
    main()
