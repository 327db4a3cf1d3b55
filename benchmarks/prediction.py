"""Errors of predicted times and memory on this machine's processors.

    python benchmarks/prediction.py [--family gpt] [--family t5] [--repeats 3] [--json OUT.json]

The demo experiments on two ranks: a profile, then training with dynamic micro-batches, by this
table and, `online`, with the corrections that the run learns from its own passes. All of it is
repeated, and numbers are medians over the repeats: a machine that is not equally fast all the time
may become slower or faster after its profile, which looks like an error of the table. Errors are
|predicted - measured| / measured, over the iterations 10 to 60; `least` and `most` are the mean
errors of single repeats. "p/m" is predicted over measured, by part of the iteration where the ranks
spend it: forward passes (with reading their tokens) and backward passes by stage, and the update.
"rest" is what is not inside of any instruction, in ms. Nothing else should run beside it: the load
of the machine is measured at the end of each phase, and should be about the number of ranks. A
repeat takes three minutes (GPT) and five (T5); folders are removed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.report.comparison import relative_difference
from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.timeline import Bar, BarKind, IterationTimeline
from measured import print_table

CONFIGS = {"gpt": Path("configs/demo/dynamic.toml"), "t5": Path("configs/demo_t5/dynamic.toml")}
N_RANKS = 2
COUNTED = range(10, 61)
N_SAMPLES = 4000
BIN = Path(sys.prefix) / "bin"
# As the Makefile sets them: several ranks share few cores.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
PART_OF = {BarKind.LOAD: "forward", BarKind.FORWARD: "forward", BarKind.BACKWARD: "backward"}

Row = dict[str, float]


def measure(config: Path, folder: Path) -> dict[str, Row]:
    """Profiles, trains by the table alone and with corrections, and compares."""
    corpus, costs = folder / "corpus", folder / "costs.h5"
    dynapipe("demo-corpus", f"{corpus}.jsonl", "--samples", N_SAMPLES, "--seed", 1)
    dynapipe("preprocess", f"{corpus}.jsonl", f"{corpus}.h5")
    data = ["--set", f"data.dataset={corpus}.h5"]
    started_s = time.perf_counter()
    dynapipe("profile", config, "-o", costs, *data, n_ranks=N_RANKS)
    profile_s, profile_load = time.perf_counter() - started_s, os.getloadavg()[0]
    changes = {
        "planner.cost.path": costs,
        "training.iterations": COUNTED.stop,
        "report.trace_iterations": COUNTED.stop,
    }
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


def dynapipe(verb: str, *arguments: object, n_ranks: int = 1) -> None:
    """Runs a verb, on so many ranks."""
    launch = [str(BIN / "mpiexec"), "-n", str(n_ranks)] if n_ranks > 1 else []
    command = [*launch, str(BIN / "dynapipe-hpc"), verb, *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **SETTINGS})


def compare(run: RunFolder, counted: range = COUNTED) -> Row:
    """Errors over the counted iterations, and where they come from."""
    records = [record for record in run.records() if record.iteration in counted]
    timelines = [line for line in run.timelines() if line.iteration in counted]
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
        "rest_ms": _rest_ms(records, timelines),
        **parts_of(timelines),
    }


def _rest_ms(records: Sequence[IterationRecord], timelines: Sequence[IterationTimeline]) -> float:
    """Of an iteration, what is before or behind all instructions."""
    pairs = zip(records, timelines, strict=True)
    return median(record.measured_ms - timeline.measured_ms for record, timeline in pairs)


def parts_of(timelines: Sequence[IterationTimeline]) -> Row:
    """Predicted over measured time of what ranks do; time waited per iteration."""
    planned = sums_of(bar for timeline in timelines for bar in timeline.planned)
    measured = sums_of(bar for timeline in timelines for bar in timeline.measured)
    ratios = {f"{part} p/m": planned[part] / measured[part] for part in sorted(planned)}
    ends_ms = (max(bar.end_ms for bar in timeline.planned) for timeline in timelines)
    update_ms = mean(t.planned_ms - end for t, end in zip(timelines, ends_ms, strict=True))
    each = {f"{part}_ms": measured[part] / len(timelines) for part in sorted(measured)}
    return ratios | each | {"planned_update_ms": update_ms}


def sums_of(bars: Iterable[Bar]) -> dict[str, float]:
    """Time by part and stage, which is the rank."""
    sums: dict[str, float] = defaultdict(float)
    for bar in bars:
        sums[f"{PART_OF.get(bar.kind, bar.kind)}_{bar.rank}"] += bar.end_ms - bar.start_ms
    return sums


def typical(repeats: Sequence[Row]) -> Row:
    """Medians over repeats, and the range of the mean error."""
    means = [row["mean_error"] for row in repeats]
    medians = {key: median(row[key] for row in repeats) for key in repeats[0]}
    return {**medians, "least": min(means), "most": max(means), "repeats": len(repeats)}


def show(results: Mapping[str, Row]) -> None:
    """The errors as a table, the parts below."""
    errors = ("median_error", "mean_error", "least", "most", "largest_error", "mean_peak_error")
    columns = dict.fromkeys(errors, "{:.1%}")
    columns |= {"predicted_ms": "{:.0f}", "measured_ms": "{:.0f}", "p/m": "{:.3f}"}
    print_table(results, columns)
    for family, row in results.items():
        rest = {name: value for name, value in row.items() if name not in columns}
        print(f"{family}:", ", ".join(f"{name} {value:.3g}" for name, value in rest.items()))


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
    show(results)
    if arguments.json:
        text = json.dumps({"machine": machine_facts(N_RANKS), "results": results}, indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
