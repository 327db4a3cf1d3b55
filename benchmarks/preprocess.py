"""How many tokens per second does preprocess write, and does its memory grow with the text?

    python benchmarks/preprocess.py [VOCAB.json MERGES.txt] [--json OUT.json]

The text is the demo corpus; without files the tokenizer is bytes, which shows what everything but
the BPE costs. Sizes ascend, so that the peak memory of the first process, which reads and
writes, would show a growth; workers hold one block of lines each.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from dynapipe_hpc.data.demo.corpus import write_demo_corpus
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer
from measured import print_table, write_json

SAMPLES = (25_000, 100_000, 400_000)
COLUMNS = {
    "samples": "{:.0f}",
    "megabytes": "{:.1f}",
    "tokens_written": "{:.0f}",
    "seconds": "{:.2f}",
    "tokens_per_second": "{:.0f}",
    "peak_mib": "{:.0f}",
}


def measure(n_samples: int, tokenizer: Tokenizer, folder: Path) -> dict[str, float]:
    """Times a whole run, the start of the workers included."""
    source = folder / "corpus.jsonl"
    write_demo_corpus(source, n_samples, seed=0, max_bytes=8192)
    started_s = time.perf_counter()
    totals = preprocess(
        [source], folder / "corpus.h5", Recipe(tokenizer), PreprocessOptions(force=True)
    )
    seconds = time.perf_counter() - started_s
    return {
        "samples": totals.n_samples,
        "megabytes": totals.n_bytes / 1e6,
        "tokens_written": totals.n_tokens,
        "seconds": seconds,
        "tokens_per_second": totals.n_tokens / seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path, nargs="*")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(read_tokenizer(arguments.tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        results = {
            f"{tokenizer.name}, {n_samples:,}": measure(n_samples, tokenizer, Path(folder))
            for n_samples in SAMPLES
        }
    print(f"{len(os.sched_getaffinity(0))} cores")
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
