"""How much faster do two ranks preprocess than one, and what does reading from shards cost?

    python benchmarks/preprocess_ranks.py [VOCAB.json MERGES.txt] [--json OUT.json]

The same files of the demo corpus, by one and two ranks in turn, each with one process that
tokenizes in one thread. The machine may be busy with something else: besides the time of the
clock there is that of the processor, which all processes of a job took together, and of the
slowest rank; where every rank has a core of its own, the latter is what a job takes. Then samples
are read in random order from one file and from shards.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.verify_dataset import verify_dataset
from dynapipe_hpc.data.demo.corpus import write_demo_corpus
from measured import medians, print_table, write_json

N_FILES = 4
SAMPLES = 50_000  # of every file
REPEATS = 5
READS = 20_000
BIN = Path(sys.prefix) / "bin"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
COLUMNS = {"wall_s": "{:.2f}", "processor_s": "{:.2f}"}


def write_sources(folder: Path) -> list[Path]:
    """The files; not all of one size."""
    sources = [folder / f"{k}.jsonl" for k in range(N_FILES)]
    for seed, source in enumerate(sources):
        write_demo_corpus(source, SAMPLES + 5000 * seed, seed, max_bytes=8192)
    return sources


def measure(
    n_ranks: int, sources: list[Path], output: Path, options: list[str]
) -> dict[str, float]:
    """Times a whole job, start and index included, that has nothing to go on with."""
    for left in output.parent.glob(f"{output.name}.shards/*"):
        left.unlink()
    command = [str(BIN / "mpiexec"), "-n", str(n_ranks), str(BIN / "dynapipe-hpc"), "preprocess"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.perf_counter()
    subprocess.run(
        [*command, *options, "--workers", "1", "--force", *map(str, sources), str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **ROOT, "OMP_NUM_THREADS": "1"},
    )
    wall_s = time.perf_counter() - started_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall_s, "processor_s": used_s}


def read_us(path: Path) -> float:
    """Processor time of reading one sample, of samples in random order."""
    with DatasetFile(path) as dataset:
        order = np.random.Generator(np.random.PCG64(0)).integers(0, dataset.n_samples, READS)
        inputs, targets = dataset.input_lengths.tolist(), dataset.target_lengths.tolist()
        started_s = time.process_time()
        for i in order.tolist():
            dataset.read(i, inputs[i], targets[i])
        return 1e6 * (time.process_time() - started_s) / READS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path, nargs="*")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    options = [word for path in arguments.tokenizer for word in ("--tokenizer", str(path))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = write_sources(folder)
        outputs = {1: folder / "one.h5", 2: folder / "two.h5"}
        rows: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for _ in range(REPEATS):
            for n_ranks, output in outputs.items():
                rows[n_ranks].append(measure(n_ranks, sources, output, options))
        hashes = {verify_dataset(output) for output in outputs.values()}
        whole = folder / "whole.h5"
        alone = [str(BIN / "dynapipe-hpc"), "preprocess", *options, *map(str, sources), str(whole)]
        subprocess.run(alone, check=True, stdout=subprocess.DEVNULL)
        hashes.add(verify_dataset(whole))
        read = {"one file": read_us(whole), "shards": read_us(outputs[2])}
        n_bytes = sum(source.stat().st_size for source in sources)
    results = {f"{n} ranks": medians(found, COLUMNS) for n, found in rows.items()}
    one, two = results.values()
    wall_ratios = [a["wall_s"] / b["wall_s"] for a, b in zip(rows[1], rows[2], strict=True)]
    facts = {
        "megabytes": n_bytes / 1e6,
        "same_content": len(hashes) == 1,
        "load_average": os.getloadavg()[1],
        "speedup_by_wall": one["wall_s"] / two["wall_s"],
        "speedups_by_wall_of_pairs": wall_ratios,
        "speedup_by_processor_time_per_rank": 2 * one["processor_s"] / two["processor_s"],
        "read_us_per_sample": read,
    }
    print_table(results, COLUMNS)
    for fact, value in facts.items():
        print(f"{fact}: {value}")
    if arguments.json:
        write_json(arguments.json, {**results, **facts})


if __name__ == "__main__":
    main()
