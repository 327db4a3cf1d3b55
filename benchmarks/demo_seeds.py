"""Real tokens per second of batching rules and of dynamic micro-batches.

    python benchmarks/demo_seeds.py [--seeds 5] [--batches 3] [--json OUT.json]

With `--variants` it is a rank of the job that it starts.

Four ranks train a model like that of the demo (four layers of width 256, samples of up to 512
tokens) as 2 stages x 2 replicas. It is profiled first. Then every batch of every seed is trained on
by all rules in turn, by the same ranks with the same weights, so that what disturbs the machine
disturbs all alike; each batch begins with another rule. Baselines are tuned for every batch; those
for packed rows run 1F1B, as their authors do. Planning is not timed: a run hides it.

`tokens/s` is the median over seeds of real tokens over time; `ratio` is that of `dynamic` over that
of the rule within a seed, the geometric mean over seeds, `least` and `most` its extremes. The row
`best rule` compares with whatever rule is fastest in a seed.

Ranks need a core each. On fewer, they take turns: one computes while another waits, so that bubbles
cost less than they would.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory

from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.experiment.config import any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.rank.devices import find_device
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.job.job import Job, open_job
from dynapipe_hpc.plan.codec import decode, encode_plans
from dynapipe_hpc.planner.make_plans import Planner
from measured import dynapipe, print_table, run, write_corpus, write_json

CONFIG = Path(__file__).parents[1] / "configs" / "demo" / "base.toml"
WARM_UP = (0, 0)  # the seed and the batch that are trained on before anything is measured
N_RANKS = 4
LONGEST = 512
SIZES: dict[str, int] = {
    "model.n_layers": 4,
    "model.hidden_size": 256,
    "model.n_heads": 4,
    "model.ffn_size": 1024,
    "model.max_tokens": LONGEST,
    "data.max_tokens": LONGEST,
    "training.iterations": 100_000,  # decides the learning rate only
    "cluster.n_stages": 2,
    "cluster.n_replicas": 2,
}
DIVISION = "2 stages x 2 replicas"
PADDED = ("naive_padding", "dense_packing", "token_budget")
PACKED = ("packed_next_fit", "packed_balanced")
OURS, BEST = "dynamic", "best rule"
COLUMNS = {"tokens/s": "{:.0f}", "ratio": "{:.3f}", "least": "{:.3f}", "most": "{:.3f}"}

Batches = Sequence[Mapping[str, float]]
Row = dict[str, float]


def overrides_of(rule: str) -> list[str]:
    """Changes of the base configuration for a rule."""
    if rule == OURS:
        return ["planner.batch.layouts=['padded', 'packed']"]
    scheduled = ["planner.schedule.rules=['1f1b']"] if rule in PACKED else []
    return [f"planner.batch={{rule='{rule}'}}", *scheduled]


def measure(folder: Path, n_seeds: int, n_batches: int) -> dict[str, Row]:
    """Profiles and trains."""
    costs, found = folder / "costs.h5", folder / "found.json"
    common = [
        f"data.dataset='{write_corpus(folder, '--max-bytes', LONGEST)}'",
        f"planner.cost.path='{costs}'",
        *(f"{key}={value}" for key, value in SIZES.items()),
    ]
    sets = [word for each in (*common, *overrides_of(OURS)) for word in ("--set", each)]
    largest = ("--microbatch-tokens", 2 * LONGEST)
    dynapipe("profile", CONFIG, "-o", costs, *largest, *sets, n_ranks=N_RANKS)
    variants = {rule: [*common, *overrides_of(rule)] for rule in (*PADDED, *PACKED, OURS)}
    counts = ("--seeds", n_seeds, "--batches", n_batches)
    options = ("--variants", json.dumps(variants), *counts, "--json", found)
    run(sys.executable, __file__, *options, n_ranks=N_RANKS)
    return rows_of(json.loads(found.read_text(encoding="utf-8")))


def rows_of(seeds: Sequence[Mapping[str, Batches]]) -> dict[str, Row]:
    """A row per rule, from the measurements of every seed."""
    best = [max((seed[rule] for rule in seed if rule != OURS), key=rate) for seed in seeds]
    with_best = [{**seed, BEST: fastest} for seed, fastest in zip(seeds, best, strict=True)]
    return {rule: row_of([(seed[OURS], seed[rule]) for seed in with_best]) for rule in with_best[0]}


def row_of(seeds: Sequence[tuple[Batches, Batches]]) -> Row:
    """The row of a rule, from the measurements of ours and of the rule by seed."""
    ratios = [rate(ours) / rate(own) for ours, own in seeds]
    return {
        "tokens/s": median(rate(own) for _, own in seeds),
        "ratio": geometric_mean(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def rate(batches: Batches) -> float:
    """Real tokens per second."""
    tokens, seconds = (sum(batch[key] for batch in batches) for key in ("tokens", "measured_s"))
    return tokens / seconds


def train_in_turn(
    job: Job, variants: Mapping[str, Experiment], n_seeds: int, n_batches: int
) -> list[dict[str, list[dict[str, float]]]]:
    """Trains on the first batches of every seed by every planner; the same ranks and weights.

    Returns, by seed and name of a variant, an entry per batch: real tokens and seconds.
    """
    first, *_ = variants.values()
    placement = any_placement(first.config)
    planners = {name: files.planner_of(placement) for name, files in variants.items()}
    first.placement = placement
    rank = Rank(job, first.open(), find_device(job, first.config))
    batches = [
        [sampler_of(first, seed).iteration(k) for k in range(n_batches)] for seed in range(n_seeds)
    ]
    found: list[dict[str, list[dict[str, float]]]] = [
        {name: [] for name in planners} for _ in range(n_seeds)
    ]
    n_trained = 0
    turns = [WARM_UP, *((seed, k) for seed in range(n_seeds) for k in range(n_batches))]
    for turn, (seed, k) in enumerate(turns):
        names = [*planners][turn % len(planners) :] + [*planners][: turn % len(planners)]
        for name in names:
            measured_s = train(job, rank, planners[name], n_trained, batches[seed][k])
            n_trained += 1
            if turn > 0:
                tokens = sum(sample.tokens for sample in batches[seed][k])
                found[seed][name].append({"tokens": tokens, "measured_s": measured_s})
    rank.channels.close()
    return found


def sampler_of(files: Experiment, seed: int) -> TokenBudgetSampler:
    """The sampler with another seed."""
    data = files.config.data.model_copy(update={"seed": seed})
    return Experiment(files.config.model_copy(update={"data": data})).sampler


def train(
    job: Job, rank: Rank, planner: Planner, iteration: int, samples: Sequence[Sample]
) -> float:
    """Seconds of training on one batch; planning is not timed."""
    planned = encode_plans(planner.make_plans(iteration, samples)) if job.is_first else []
    plan = decode(job.broadcast(planned)[job.rank])
    rank.loader.start_iteration(samples)
    job.barrier()
    started_s = time.perf_counter()
    launch_plan(plan, rank.stage, rank.channels.transport, rank.clock).finish()
    job.barrier()
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--variants", type=json.loads, help="overrides by name, in JSON")
    arguments = parser.parse_args()
    if arguments.variants:
        with open_job() as job:
            variants = {
                name: Experiment(load_config(CONFIG, overrides))
                for name, overrides in arguments.variants.items()
            }
            of_seeds = train_in_turn(job, variants, arguments.seeds, arguments.batches)
            if job.is_first:
                arguments.json.write_text(json.dumps(of_seeds), encoding="utf-8")
        return
    with TemporaryDirectory() as folder:
        rows = measure(Path(folder), arguments.seeds, arguments.batches)
    print_table(rows, COLUMNS)
    if arguments.json:
        write_json(arguments.json, {DIVISION: rows})


if __name__ == "__main__":
    main()
