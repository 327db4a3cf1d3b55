"""Timing and output of benchmarks."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dynapipe_hpc.job.machine import machine_facts

Rows = Mapping[str, Mapping[str, float]]
BIN = Path(sys.executable).parent
# As the Makefile sets them: several ranks share few cores.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def dynapipe(verb: str, *arguments: object, n_ranks: int = 1) -> None:
    """Runs a verb, on so many ranks."""
    run(BIN / "dynapipe-hpc", verb, *arguments, n_ranks=n_ranks)


def run(*command: object, n_ranks: int = 1) -> None:
    """Runs a command, on so many ranks."""
    launch = [BIN / "mpiexec", "-n", n_ranks] if n_ranks > 1 else []
    words = [str(word) for word in (*launch, *command)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=os.environ | SETTINGS)


def write_corpus(folder: Path, *options: object) -> Path:
    """The dataset of a demo corpus of 4,000 samples."""
    text, dataset = folder / "corpus.jsonl", folder / "corpus.h5"
    dynapipe("demo-corpus", text, "--samples", 4000, *options)
    dynapipe("preprocess", text, dataset)
    return dataset


def median_ms(
    work: Callable[[], object], n_repeats: int = 15, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The median time of one call, of several."""
    times_ms = []
    for _ in range(n_repeats):
        started_s = clock()
        work()
        times_ms.append(1e3 * (clock() - started_s))
    return statistics.median(times_ms)


def run_over_inputs(
    doc: str, measure_all: Callable[[Path], Rows], columns: Mapping[str, str]
) -> None:
    """A planner benchmark as a command: [FOLDER of the inputs] [--json OUT.json]."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure_all(arguments.folder)
    print_table(results, columns)
    if arguments.json:
        write_json(arguments.json, results)


def print_table(rows: Rows, forms: Mapping[str, str]) -> None:
    """Prints a row per name; `forms` names the columns and how to write their numbers."""
    width = max(len(name) for name in rows)
    print(" " * width, *forms)
    for name, row in rows.items():
        cells = (f"{form.format(row[column]):>{len(column)}}" for column, form in forms.items())
        print(f"{name:{width}}", *cells)


def write_json(path: Path, results: Mapping[str, object], n_ranks: int = 1) -> None:
    """Writes results beside the facts of the machine and the commit."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    machine = machine_facts(n_ranks) | {"commit": done.stdout.strip() or "unknown"}
    path.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
