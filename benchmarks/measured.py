"""How benchmarks time things and write what they found."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dynapipe_hpc.experiment.machine import machine_facts


def median_ms(work: Callable[[], object], n_repeats: int = 15) -> float:
    """The median time of one call, of several."""
    times_ms = []
    for _ in range(n_repeats):
        started_s = time.perf_counter()
        work()
        times_ms.append(1e3 * (time.perf_counter() - started_s))
    return statistics.median(times_ms)


def print_table(rows: Mapping[str, Mapping[str, float]], forms: Mapping[str, str]) -> None:
    """Prints a row per name; `forms` names the columns and how to write their numbers."""
    width = max(len(name) for name in rows)
    print(" " * width, *forms)
    for name, row in rows.items():
        cells = (f"{form.format(row[column]):>{len(column)}}" for column, form in forms.items())
        print(f"{name:{width}}", *cells)


def write_json(path: Path, results: Mapping[str, object]) -> None:
    """Writes results beside the facts of the machine."""
    text = json.dumps({"machine": machine_facts(n_ranks=1), "results": results}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
