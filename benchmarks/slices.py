"""Gain of slices on two stages of this machine's processors, and errors of their prediction.

    python benchmarks/slices.py [--seeds 5] [--json OUT.json]

Every batch has one sample of 8,192 tokens and about as many tokens of samples of 256 to 768, which
are a fifth of the work. A profile, then for each seed of the batches a run without slices and one
with them, of the same iterations; the first iteration is left out. "ratio" is real tokens per
second with slices over those without, of a seed; errors are |predicted - measured| / measured,
medians over a seed's iterations; "loss" is the largest relative difference of losses. Nothing else
should run beside it: the load of the machine is measured at the end of each seed. It takes about
ten minutes.
"""

import argparse
import json
import os
import random
import string
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import tomli_w

from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.throughput import largest_loss_difference, relative_difference
from measured import print_table
from prediction import dynapipe

N_RANKS = 2
LONG_TOKENS = 8192
SHORT_TOKENS = (256, 768)
N_SHORT = LONG_TOKENS // (sum(SHORT_TOKENS) // 2)
N_ITERATIONS = 6
SETTINGS = ("off", "auto")

Row = dict[str, float]


def experiment(folder: Path) -> dict[str, object]:
    """The configuration of the runs, but for what seeds and slices change."""
    datasets = ((_dataset(folder, "long"), 1), (_dataset(folder, "short"), N_SHORT))
    return {
        "data": {
            "mixture": [{"dataset": str(path), "weight": weight} for path, weight in datasets],
            "max_tokens": LONG_TOKENS,
            # A second long sample does not fit.
            "tokens_per_batch": 5 * LONG_TOKENS // 2,
        },
        "model": {
            "family": "llama",
            "n_layers": 2,
            "hidden_size": 128,
            "n_heads": 2,
            "n_kv_heads": 1,
            "ffn_size": 384,
            "vocab_size": 257,
            "max_tokens": LONG_TOKENS,
        },
        "cluster": {"n_stages": N_RANKS, "device_memory_bytes": "4GB"},
        "planner": {
            "cost": {"kind": "profiled", "path": str(folder / "costs.h5")},
            "batch": {"rule": "dynamic", "layouts": ["packed"]},
        },
        "training": {"iterations": N_ITERATIONS, "learning_rate": 1e-3},
    }


def _dataset(folder: Path, name: str) -> Path:
    """Samples of letters, each with its end-of-sequence token."""
    draw = random.Random(name)  # noqa: S311 - no secret
    bounds = SHORT_TOKENS if name == "short" else (LONG_TOKENS, LONG_TOKENS)
    n_samples = N_ITERATIONS * (N_SHORT if name == "short" else 1)
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(4 * n_samples):
            text = "".join(draw.choices(string.ascii_letters, k=draw.randint(*bounds) - 1))
            file.write(json.dumps({"inputs": text[:8], "targets": text[8:]}) + "\n")
    dynapipe("preprocess", path, path.with_suffix(".h5"))
    return path.with_suffix(".h5")


def measure(folder: Path, config: Path, seed: int) -> Row:
    """Runs a seed's iterations without slices and with them, and compares."""
    records = {}
    for slices in SETTINGS:
        run = folder / f"run_{seed}_{slices}"
        changes = {"data.seed": seed, "planner.batch.slices": slices}
        options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
        dynapipe("run", config, "-o", run, *options, n_ranks=N_RANKS)
        records[slices] = list(RunFolder.open(run).records())
    whole, sliced = (each[1:] for each in records.values())
    return {
        "ratio": _tokens_per_s(sliced) / _tokens_per_s(whole),
        "predicted ratio": sum(r.predicted_ms for r in whole) / sum(r.predicted_ms for r in sliced),
        "whole_ms": median(r.measured_ms for r in whole),
        "sliced_ms": median(r.measured_ms for r in sliced),
        "time error, whole": _time_error(whole),
        "time error": _time_error(sliced),
        "p/m": sum(r.predicted_ms for r in sliced) / sum(r.measured_ms for r in sliced),
        "peak error, whole": _peak_error(whole),
        "peak error": _peak_error(sliced),
        "peak p/m": sum(r.predicted_peak_bytes for r in sliced)
        / sum(r.measured_peak_bytes for r in sliced),
        "loss": largest_loss_difference(*records.values()),
        "micro-batches": median(r.n_microbatches for r in sliced),
        "load": os.getloadavg()[0],
    }


def _tokens_per_s(records: Sequence[IterationRecord]) -> float:
    return 1e3 * sum(r.real_tokens for r in records) / sum(r.measured_ms for r in records)


def _time_error(records: Sequence[IterationRecord]) -> float:
    return median(relative_difference(r.predicted_ms, r.measured_ms) for r in records)


def _peak_error(records: Sequence[IterationRecord]) -> float:
    return median(
        relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes) for r in records
    )


def show(results: dict[str, Row]) -> None:
    """A row per seed, then their median, least and most."""
    forms = dict.fromkeys(results["median"], "{:.3f}")
    forms |= {name: "{:.1%}" for name in forms if "error" in name}
    forms |= {"whole_ms": "{:.0f}", "sliced_ms": "{:.0f}", "loss": "{:.1e}", "load": "{:.1f}"}
    print_table(results, forms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, choices=range(1, 20), default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "slices.toml"
        config.write_text(tomli_w.dumps(experiment(folder)), encoding="utf-8")
        grid = "--microbatch-tokens", LONG_TOKENS
        dynapipe("profile", config, "-o", folder / "costs.h5", *grid, n_ranks=N_RANKS)
        rows = [measure(folder, config, seed) for seed in range(arguments.seeds)]
    results = {f"seed {seed}": row for seed, row in enumerate(rows)}
    for statistic in (median, min, max):
        results[statistic.__name__] = {key: statistic(row[key] for row in rows) for key in rows[0]}
    show(results)
    if arguments.json:
        text = json.dumps({"machine": machine_facts(N_RANKS), "results": results}, indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
