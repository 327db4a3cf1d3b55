"""Do split backward passes gain what is predicted, on this machine's processors?

    python benchmarks/split_backward.py [--stages 2] [--stages 4] [--json OUT.json]

The demo experiment with samples of up to 512 tokens, on as many ranks as stages, two layers on
each, micro-batches padded or packed: a profile with both halves of backward passes, then training
with whole passes ("whole"), with a choice ("chosen"), with split ones only ("split"), and with
these where the profile has no halves ("by FLOPs"). Times are medians over the iterations 3 to 14,
errors are |predicted - measured| / measured; "p/m" is predicted over measured, also of backward
passes on all ranks, whole or split. Nothing else should run beside it, and with more stages than
cores predictions are of ranks that compete. Takes some minutes; folders are removed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.summary import relative_difference
from dynapipe_hpc.report.timeline import Bar, BarKind
from measured import print_table
from prediction import CONFIGS, N_SAMPLES, dynapipe

COUNTED = range(3, 15)
LAYERS_PER_STAGE = 2
SPLITS = "split_backward=true"
SCHEDULES = {
    "whole": "{rules=['1f1b']}",
    "chosen": f"{{{SPLITS}, rules=['1f1b', 'zb_h1', 'adaptive']}}",
    "split": f"{{{SPLITS}, rules=['zb_h1', 'adaptive']}}",
    "by FLOPs": f"{{{SPLITS}, rules=['zb_h1', 'adaptive']}}",
}

Row = dict[str, float]


def measure(n_stages: int, folder: Path) -> dict[str, Row]:
    """Profiles once, and trains with every kind of schedule."""
    corpus, costs = folder / "corpus", folder / "costs.h5"
    dynapipe("demo-corpus", f"{corpus}.jsonl", "--samples", N_SAMPLES, "--seed", 1)
    dynapipe("preprocess", f"{corpus}.jsonl", f"{corpus}.h5")
    common = {
        "data.dataset": f"{corpus}.h5",
        "data.max_tokens": 512,
        "data.tokens_per_batch": 8192,
        "model.n_layers": LAYERS_PER_STAGE * n_stages,
        "cluster.n_stages": n_stages,
        "planner.batch.layouts": ["padded", "packed"],
        "training.iterations": COUNTED.stop,
        "report.trace_iterations": COUNTED.stop,
    }
    job = ("gpt", n_stages)
    _start("profile", job, costs, common | {"planner.schedule": SCHEDULES["chosen"]})
    without = folder / "without_halves.h5"
    table = read_table(costs)
    whole = {k: replace(v, input_ms=None, weight_ms=None) for k, v in table.layers.items()}
    write_table(replace(table, layers=whole), without)
    rows = {}
    for name, schedule in SCHEDULES.items():
        path = without if name == "by FLOPs" else costs
        changes = {"planner.cost.path": path, "planner.schedule": schedule}
        _start("run", job, folder / name, common | changes)
        rows[f"{n_stages} stages, {name}"] = compare(RunFolder.open(folder / name))
        rows[f"{n_stages} stages, {name}"]["load"] = os.getloadavg()[0]
        print(f"{n_stages} stages, {name}: done", file=sys.stderr)
    return rows


def _start(verb: str, job: tuple[str, int], output: Path, changes: Mapping[str, object]) -> None:
    family, n_ranks = job
    settings = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    dynapipe(verb, CONFIGS[family], "-o", output, *settings, n_ranks=n_ranks)


def compare(run: RunFolder) -> Row:
    """Predicted and measured times and memory over the counted iterations."""
    records = [record for record in run.records() if record.iteration in COUNTED]
    timelines = [line for line in run.timelines() if line.iteration in COUNTED]
    planned_ms = sum(_backward_ms(timeline.planned) for timeline in timelines)
    measured_ms = sum(_backward_ms(timeline.measured) for timeline in timelines)
    n_split = sum(any(b.label.startswith("W") for b in line.measured) for line in timelines)
    return {
        "predicted_ms": median(r.predicted_ms for r in records),
        "measured_ms": median(r.measured_ms for r in records),
        "p/m": sum(r.predicted_ms for r in records) / sum(r.measured_ms for r in records),
        "error": mean(relative_difference(r.predicted_ms, r.measured_ms) for r in records),
        "peak error": mean(
            relative_difference(r.predicted_peak_bytes, r.measured_peak_bytes) for r in records
        ),
        "backward_ms": measured_ms / len(timelines),
        "backward p/m": planned_ms / measured_ms,
        "split plans": n_split / len(timelines),
    }


def _backward_ms(bars: Iterable[Bar]) -> float:
    return sum(bar.end_ms - bar.start_ms for bar in bars if bar.kind is BarKind.BACKWARD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, action="append", help="default: 2 and 4")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Row] = {}
    for n_stages in arguments.stages or (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            results |= measure(n_stages, Path(folder))
    columns = {"predicted_ms": "{:.0f}", "measured_ms": "{:.0f}", "p/m": "{:.3f}"}
    columns |= {"error": "{:.1%}", "peak error": "{:.1%}", "backward_ms": "{:.0f}"}
    print_table(results, columns | {"backward p/m": "{:.3f}", "split plans": "{:.0%}"})
    if arguments.json:
        found = {"machine": machine_facts(max(arguments.stages or (4,))), "results": results}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
