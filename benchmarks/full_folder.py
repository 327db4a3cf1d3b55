"""What does an iteration write in a run folder that holds 20,000 files, against an empty one?

    python benchmarks/full_folder.py [--files 20000] [--json OUT.json]

The folder is made where temporary files go (TMPDIR). A row is a folder; both take turns. Medians
in ms, of the whole and of processor time:

- line: an iteration's line in iterations.csv
- plan: its plan as text, a small file written beside and renamed
- lasting: the same, waiting until file and folder are on disk, as for the facts of a run
- cleaning: a look for what killed jobs left of one file, which lists the folder: what no write
  does, and `preprocess` does once
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dynapipe_hpc.data.replacing import remove_left_over
from dynapipe_hpc.report.iteration_record import IterationRecord
from dynapipe_hpc.report.iterations_file import IterationsFile
from dynapipe_hpc.report.run_folder import ITERATIONS, write_atomically
from measured import print_table, write_json

N_TURNS = 101
PLAN = 100 * "rank 0 | F0 a0>1 F1 a1>1 g0<1 B0 g1<1 B1\n"
RECORD = IterationRecord(0, 2.5, 1.0, 1e-4, 256, 16, 65536, 70000, 500.0, 510.0, 10**9, 10**9,
                         20.0, 0.5, 3)  # fmt: skip
WRITES: Mapping[str, Callable[[Path], None]] = {
    "line": lambda folder: IterationsFile(folder / ITERATIONS).add(RECORD),
    "plan": lambda folder: write_atomically(folder / "0000.txt", PLAN, lasting=False),
    "lasting": lambda folder: write_atomically(folder / "0000.txt", PLAN),
    "cleaning": lambda folder: remove_left_over(folder / "0000.txt"),
}
COLUMNS = {column: "{:.3f}" for name in WRITES for column in (f"{name}_ms", f"{name}_processor_ms")}


def filled(folder: Path, n_files: int) -> Path:
    """A new folder with the plans of so many iterations, and where the next ones go."""
    folder.mkdir()
    IterationsFile(folder / ITERATIONS).begin()
    for number in range(1, n_files + 1):
        (folder / f"{number:04d}.txt").write_text(PLAN, encoding="utf-8")
    return folder


def timed(work: Callable[[Path], None], folder: Path) -> tuple[float, float]:
    """Time and processor time in ms."""
    started_s, process_s = time.perf_counter(), time.process_time()
    work(folder)
    return 1e3 * (time.perf_counter() - started_s), 1e3 * (time.process_time() - process_s)


def measure(folders: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn in range(N_TURNS):
        names = list(folders)[:: (-1) ** turn]  # neither always finds the other's caches
        for write, work in WRITES.items():
            for name in names:
                times.setdefault((name, write), []).append(timed(work, folders[name]))
    rows: dict[str, dict[str, float]] = {name: {} for name in folders}
    for (name, write), pairs in times.items():
        whole, processor = zip(*pairs, strict=True)
        rows[name][f"{write}_ms"] = statistics.median(whole)
        rows[name][f"{write}_processor_ms"] = statistics.median(processor)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        results = measure(
            {
                f"{n_files:,} files": filled(Path(parent) / str(n_files), n_files)
                for n_files in (0, arguments.files)
            }
        )
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
