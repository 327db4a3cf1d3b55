"""How long does it take to read the iterations of a very long run, and does memory grow with them?

    python benchmarks/long_run.py [--json OUT.json]

iterations.csv is read as a stream: every line is parsed and checked, and none is kept. Sizes
ascend, so that the peak memory of the process would show a growth. `seconds` is processor time of
this one thread; `peak_mib` begins with what Python and its packages take (a row without lines).
"""

import argparse
import os
import resource
import tempfile
import time
from collections import deque
from pathlib import Path

from dynapipe_hpc.report.iterations_file import IterationsFile
from measured import print_table, write_json

LINES = (0, 180_000, 1_800_000)
VALUES = (
    "2.4837162971496582,1.038276195526123,9.871624e-05,256,16,65536,70144,501.3728,513.9116,"
    "1048576000,1031798784,19.4416,0.5127,3"
)
COLUMNS = {
    "megabytes": "{:.0f}",
    "seconds": "{:.2f}",
    "peak_mib": "{:.1f}",
}


def measure(n_lines: int, folder: Path) -> dict[str, float]:
    path = folder / "iterations.csv"
    written = IterationsFile(path)
    written.begin()
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{number},{VALUES}\n" for number in range(n_lines))
    started_s = time.process_time()
    deque(written.records(), maxlen=0)
    seconds = time.process_time() - started_s
    return {
        "megabytes": path.stat().st_size / 1e6,
        "seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {f"{n_lines:,} lines": measure(n_lines, Path(folder)) for n_lines in LINES}
    print(f"{len(os.sched_getaffinity(0))} cores")
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
