"""Gain of slices on stages of this machine's processors, and errors of their prediction.

    python benchmarks/slices.py [--stages 2] [--seeds 5] [--json OUT.json]

Every batch has one sample of 8,192 tokens and about as many tokens of samples of 256 to 768, which
are a fifth of the work. A profile, then for each seed of the batches a run without slices, one
with them, and one by each rule of today at the best size for every batch: packed rows of equal work
and a token budget, of the same iterations; the first iteration is left out. "ratio" is real tokens
per second with slices over those without, of a seed, likewise "over balanced" and "over budget";
errors are of predictions with slices, medians over a seed's iterations; "loss" is the largest
relative difference of losses without slices and with them. Nothing else should run beside it: the
load of the machine is measured at the end of each seed. It takes about half an hour.
With more stages than cores, stages take turns on them, which predictions do not know.
"""

import argparse
import json
import os
import random
import string
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import tomli_w

from dynapipe_hpc.report.comparison import largest_loss_difference, relative_difference
from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder
from measured import dynapipe, print_table, write_json

LONG_TOKENS = 8192
SHORT_TOKENS = (256, 768)
N_SHORT = LONG_TOKENS // (sum(SHORT_TOKENS) // 2)
N_ITERATIONS = 6
RULES: dict[str, Mapping[str, object]] = {
    "whole": {"rule": "dynamic", "layouts": ["packed"], "slices": "off"},
    "sliced": {"rule": "dynamic", "layouts": ["packed"]},
    "balanced": {"rule": "packed_balanced", "tokens_per_microbatch": "tuned"},
    "budget": {"rule": "token_budget", "tokens_per_microbatch": "tuned"},
}
BOTH_LAYOUTS: Mapping[str, object] = {"rule": "dynamic", "layouts": ["padded", "packed"]}

Row = dict[str, float]


def experiment(folder: Path, n_stages: int, batch: Mapping[str, object]) -> dict[str, object]:
    """The configuration of the runs of a rule, but for what seeds change."""
    weights = {"long": 1, "short": N_SHORT}
    return {
        "data": {
            "mixture": [
                {"dataset": str(folder / f"{name}.h5"), "weight": weight}
                for name, weight in weights.items()
            ],
            "max_tokens": LONG_TOKENS,
            # A second long sample does not fit.
            "tokens_per_batch": 5 * LONG_TOKENS // 2,
        },
        "model": {
            "family": "llama",
            "n_layers": n_stages,
            "hidden_size": 128,
            "n_heads": 2,
            "n_kv_heads": 1,
            "ffn_size": 384,
            "vocab_size": 257,
            "max_tokens": LONG_TOKENS,
        },
        "cluster": {"n_stages": n_stages, "device_memory_bytes": "4GB"},
        "planner": {"cost": {"kind": "profiled", "path": str(folder / "costs.h5")}, "batch": batch},
        "training": {"iterations": N_ITERATIONS, "learning_rate": 1e-3},
    }


def write_dataset(folder: Path, name: str) -> None:
    """Writes samples of letters, each with its end-of-sequence token."""
    draw = random.Random(name)  # noqa: S311 - no secret
    bounds = SHORT_TOKENS if name == "short" else (LONG_TOKENS, LONG_TOKENS)
    n_samples = N_ITERATIONS * (N_SHORT if name == "short" else 1)
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(4 * n_samples):
            text = "".join(draw.choices(string.ascii_letters, k=draw.randint(*bounds) - 1))
            file.write(json.dumps({"inputs": text[:8], "targets": text[8:]}) + "\n")
    dynapipe("preprocess", path, path.with_suffix(".h5"))


def measure(folder: Path, configs: Mapping[str, Path], seed: int, n_stages: int) -> Row:
    """Runs a seed's iterations by every rule, and compares."""
    records = {}
    for rule, config in configs.items():
        run = folder / f"run_{seed}_{rule}"
        dynapipe("run", config, "-o", run, "--set", f"data.seed={seed}", n_ranks=n_stages)
        records[rule] = list(RunFolder.open(run).records())
    whole, sliced, balanced, budget = (records[rule][1:] for rule in RULES)
    return {
        "ratio": _tokens_per_s(sliced) / _tokens_per_s(whole),
        "over balanced": _tokens_per_s(sliced) / _tokens_per_s(balanced),
        "over budget": _tokens_per_s(sliced) / _tokens_per_s(budget),
        "whole_ms": median(r.measured_ms for r in whole),
        "sliced_ms": median(r.measured_ms for r in sliced),
        "time error": median(relative_difference(r.predicted_ms, r.measured_ms) for r in sliced),
        "peak error": median(
            relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes) for r in sliced
        ),
        "loss": largest_loss_difference(records["whole"], records["sliced"]),
        "load": os.getloadavg()[0],
    }


def _tokens_per_s(records: Sequence[IterationRecord]) -> float:
    return 1e3 * sum(r.real_tokens for r in records) / sum(r.measured_ms for r in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, choices=range(2, 9), default=2)
    parser.add_argument("--seeds", type=int, choices=range(1, 20), default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, n_stages = Path(temporary), arguments.stages
        for name in ("long", "short"):
            write_dataset(folder, name)
        configs = {rule: folder / f"{rule}.toml" for rule in (*RULES, "profile")}
        for rule, config in configs.items():
            batch = RULES.get(rule, BOTH_LAYOUTS)
            text = tomli_w.dumps(experiment(folder, n_stages, batch))
            config.write_text(text, encoding="utf-8")
        grid = "--microbatch-tokens", LONG_TOKENS
        profile = configs.pop("profile")
        dynapipe("profile", profile, "-o", folder / "costs.h5", *grid, n_ranks=n_stages)
        rows = [measure(folder, configs, seed, n_stages) for seed in range(arguments.seeds)]
    results = {f"seed {seed}": row for seed, row in enumerate(rows)}
    for statistic in (median, min, max):
        results[statistic.__name__] = {key: statistic(row[key] for row in rows) for key in rows[0]}
    print_table(results, dict.fromkeys(rows[0], "{:.3g}"))
    if arguments.json:
        write_json(arguments.json, results, n_stages)


if __name__ == "__main__":
    main()
