"""Errors of predicted times and memory on this machine's processors.

    python benchmarks/prediction.py [--family gpt] [--family t5] [--repeats 3] [--json OUT.json]

The demo experiments on two ranks: a profile, then training with dynamic micro-batches, by this
table and, `online`, with the corrections that the run learns from its own passes. All of it is
repeated, and numbers are medians over the repeats: a machine that is not equally fast all the time
may become slower or faster after its profile, which looks like an error of the table. Errors are
|predicted - measured| / measured, over the iterations 10 to 60; `least` and `most` are the mean
errors of single repeats; "p/m" is predicted over measured. Nothing else should run beside it: the
load of the machine is measured at the end of each phase, and should be about the number of ranks.
A repeat takes three minutes (GPT) and five (T5); folders are removed.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from dynapipe_hpc.report.comparison import relative_difference
from dynapipe_hpc.report.run_folder import RunFolder
from measured import dynapipe, print_table, write_corpus, write_json

CONFIGS = {"gpt": Path("configs/demo/dynamic.toml"), "t5": Path("configs/demo_t5/dynamic.toml")}
N_RANKS = 2
COUNTED = range(10, 61)
ERRORS = ("median_error", "mean_error", "least", "most", "largest_error", "mean_peak_error")
COLUMNS = dict.fromkeys(ERRORS, "{:.1%}") | {
    "predicted_ms": "{:.0f}",
    "measured_ms": "{:.0f}",
    "p/m": "{:.3f}",
    "profile_load": "{:.1f}",
    "run_load": "{:.1f}",
}

Row = dict[str, float]


def measure(config: Path, folder: Path) -> dict[str, Row]:
    """Profiles, trains by the table alone and with corrections, and compares."""
    costs = folder / "costs.h5"
    data = ["--set", f"data.dataset={write_corpus(folder, '--seed', 1)}"]
    started_s = time.perf_counter()
    dynapipe("profile", config, "-o", costs, *data, n_ranks=N_RANKS)
    profile_s, profile_load = time.perf_counter() - started_s, os.getloadavg()[0]
    changes = {"planner.cost.path": costs, "training.iterations": COUNTED.stop}
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    found = {}
    for name, online in (("", "false"), (", online", "true")):
        run = folder / f"run{name}"
        corrected = ["--set", f"planner.cost.online={online}"]
        dynapipe("run", config, "-o", run, *data, *settings, *corrected, n_ranks=N_RANKS)
        loads = {"profile_s": profile_s, "profile_load": profile_load}
        loads["run_load"] = os.getloadavg()[0]
        found[name] = compare(RunFolder.open(run)) | loads
    return found


def compare(run: RunFolder) -> Row:
    """Errors over the counted iterations."""
    records = [record for record in run.records() if record.iteration in COUNTED]
    times = [relative_difference(r.predicted_ms, r.measured_ms) for r in records]
    peaks = [relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes) for r in records]
    return {
        "median_error": median(times),
        "mean_error": mean(times),
        "largest_error": max(times),
        "mean_peak_error": mean(peaks),
        "predicted_ms": median(r.predicted_ms for r in records),
        "measured_ms": median(r.measured_ms for r in records),
        "p/m": sum(r.predicted_ms for r in records) / sum(r.measured_ms for r in records),
    }


def typical(repeats: Sequence[Row]) -> Row:
    """Medians over repeats, and the range of the mean error."""
    means = [row["mean_error"] for row in repeats]
    medians = {key: median(row[key] for row in repeats) for key in repeats[0]}
    return {**medians, "least": min(means), "most": max(means), "repeats": len(repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=CONFIGS, action="append", help="default: both")
    parser.add_argument("--repeats", type=int, choices=range(1, 10), default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Row] = {}
    for family in arguments.family or CONFIGS:
        repeats = []
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                repeats.append(measure(CONFIGS[family], Path(folder)))
        for name in repeats[0]:
            results[f"{family}{name}"] = typical([rows[name] for rows in repeats])
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results, N_RANKS)


if __name__ == "__main__":
    main()
