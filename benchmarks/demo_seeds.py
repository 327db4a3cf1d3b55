"""Real tokens per second of batching rules and of dynamic micro-batches.

    python benchmarks/demo_seeds.py [--seeds 5] [--batches 3] [--json OUT.json]

Four ranks train a model like that of the demo (four layers of width 256, samples of up to 512
tokens) in two divisions: 2 stages x 2 replicas, and 4 stages. Each is profiled first. Then every
batch of every seed is trained on by all rules in turn, by the same ranks with the same weights, so
that what disturbs the machine disturbs all alike; each batch begins with another rule. Baselines
are tuned for every batch; those for packed rows run 1F1B, as their authors do. Planning is not
timed: a run hides it.

`tokens/s` is the median over seeds of real tokens over time; `ratio` is that of `dynamic` over that
of the rule within a seed, the geometric mean over seeds, `least` and `most` its extremes. The row
`best rule` compares with whatever rule is fastest in a seed. `error` is the median of |predicted -
measured| / measured time in %.

Ranks need a core each. On fewer, they take turns: one computes while another waits, so that bubbles
cost less than they would.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory

from measured import print_table, write_json

BIN = Path(sys.executable).parent
DYNAPIPE, MPIEXEC = str(BIN / "dynapipe-hpc"), str(BIN / "mpiexec")
CONFIG = str(Path(__file__).parents[1] / "configs" / "demo" / "base.toml")
IN_TURN = str(Path(__file__).with_name("rules_in_turn.py"))
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
}
DIVISIONS: dict[str, dict[str, int]] = {
    "2 stages x 2 replicas": {"cluster.n_stages": 2, "cluster.n_replicas": 2},
    "4 stages": {"cluster.n_stages": 4, "cluster.n_replicas": 1},
}
PADDED = ("naive_padding", "dense_packing", "token_budget")
PACKED = ("packed_next_fit", "packed_balanced")
OURS, BEST = "dynamic", "best rule"
COLUMNS = {
    "tokens/s": "{:.0f}",
    "ratio": "{:.3f}",
    "least": "{:.3f}",
    "most": "{:.3f}",
    "error": "{:.1f}",
}

Batches = Sequence[Mapping[str, float]]
Row = dict[str, float]


def overrides_of(rule: str) -> list[str]:
    """Changes of the base configuration for a rule."""
    if rule == OURS:
        return ["planner.batch.layouts=['padded', 'packed']"]
    scheduled = ["planner.schedule.rules=['1f1b']"] if rule in PACKED else []
    return [f"planner.batch={{rule='{rule}'}}", *scheduled]


def run(*command: str) -> None:
    """Runs a command.

    Raises:
        CalledProcessError: It fails.
    """
    subprocess.run(command, check=True)


def measure(folder: Path, division: dict[str, int], counts: Sequence[str]) -> dict[str, Row]:
    """Profiles a division and trains; `counts` are the arguments for seeds and batches."""
    costs, found = folder / "costs.h5", folder / "found.json"
    costs.unlink(missing_ok=True)
    common = [
        f"data.dataset='{folder / 'corpus.h5'}'",
        f"planner.cost.path='{costs}'",
        *(f"{key}={value}" for key, value in (SIZES | division).items()),
    ]
    ranks = (MPIEXEC, "-n", str(N_RANKS))
    sets = [word for each in (*common, *overrides_of(OURS)) for word in ("--set", each)]
    largest = ("--microbatch-tokens", str(2 * LONGEST))
    run(*ranks, DYNAPIPE, "profile", CONFIG, "-o", str(costs), *largest, *sets)
    variants = {rule: [*common, *overrides_of(rule)] for rule in (*PADDED, *PACKED, OURS)}
    in_turn = (sys.executable, IN_TURN, CONFIG, "--variants", json.dumps(variants))
    run(*ranks, *in_turn, *counts, "-o", str(found))
    return rows_of(json.loads(found.read_text(encoding="utf-8")))


def rows_of(seeds: Sequence[Mapping[str, Batches]]) -> dict[str, Row]:
    """A row per rule, from the measurements of every seed."""
    with_best = [{**seed, BEST: seed[best_rule(seed)]} for seed in seeds]
    return {rule: row_of([(seed[OURS], seed[rule]) for seed in with_best]) for rule in with_best[0]}


def best_rule(seed: Mapping[str, Batches]) -> str:
    """The rule with the most real tokens per second."""
    return max((rule for rule in seed if rule != OURS), key=lambda rule: rate(seed[rule]))


def row_of(seeds: Sequence[tuple[Batches, Batches]]) -> Row:
    """The row of a rule, from the measurements of ours and of the rule by seed."""
    ratios = [rate(ours) / rate(own) for ours, own in seeds]
    return {
        "tokens/s": median(rate(own) for _, own in seeds),
        "ratio": geometric_mean(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "error": 100 * median(error for _, own in seeds for error in errors_of(own)),
    }


def rate(batches: Batches) -> float:
    """Real tokens per second."""
    tokens, seconds = (sum(batch[key] for batch in batches) for key in ("tokens", "measured_s"))
    return tokens / seconds


def errors_of(batches: Batches) -> list[float]:
    """Relative errors of predicted times."""
    return [abs(batch["predicted_s"] / batch["measured_s"] - 1) for batch in batches]


def measure_all(n_seeds: int, n_batches: int) -> dict[str, dict[str, Row]]:
    """The rows of every division."""
    counts = ("--seeds", str(n_seeds), "--batches", str(n_batches))
    with TemporaryDirectory() as name:
        folder = Path(name)
        text, dataset = str(folder / "corpus.jsonl"), str(folder / "corpus.h5")
        run(DYNAPIPE, "demo-corpus", text, "--samples", "4000", "--max-bytes", str(LONGEST))
        run(DYNAPIPE, "preprocess", text, dataset)
        return {name: measure(folder, division, counts) for name, division in DIVISIONS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure_all(arguments.seeds, arguments.batches)
    for division, rows in found.items():
        print(f"\n{division}")
        print_table(rows, COLUMNS)
    if arguments.json:
        write_json(arguments.json, found)


if __name__ == "__main__":
    main()
