"""`dynapipe-hpc preprocess IN.jsonl... OUT.h5`: text to a dataset."""

import argparse
import signal
import sys
import time
from pathlib import Path


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "preprocess",
        help="tokenize JSONL text into a dataset",
        description="Tokenizes JSON lines with the fields inputs, targets and, optionally, task.",
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="IN.jsonl")
    parser.add_argument("output", type=Path, metavar="OUT.h5")
    parser.add_argument(
        "--tokenizer",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help=(
            "a Hugging Face tokenizer.json; or, given twice, VOCAB.json and MERGES.txt; "
            "without it, bytes"
        ),
    )
    parser.add_argument("--eos", metavar="TOKEN", help="the token that ends a target")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad lines out")
    parser.add_argument("--force", action="store_true", help="replace OUT.h5 if it exists")
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes; default: one per core"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tokenizes and says what was written."""
    # Loads HDF5 and the tokenizers, which other verbs do without.
    from dynapipe_hpc.cli.progress import text_progress
    from dynapipe_hpc.data.preprocess import PreprocessOptions, preprocess, total_bytes
    from dynapipe_hpc.data.tokenizers import load_tokenizer

    # What a batch system sends before it kills: unwinds, so that no half file is left.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    start_s = time.perf_counter()
    options = PreprocessOptions(arguments.skip_bad, arguments.force, arguments.workers)
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.eos)
    with text_progress(total_bytes(arguments.sources)) as progress:
        totals = preprocess(
            arguments.sources,
            arguments.output,
            tokenizer,
            options,
            on_progress=lambda done: progress.show(done.n_bytes, done.n_tokens),
        )
    elapsed_s = time.perf_counter() - start_s
    print(
        f"{arguments.output}: {totals.n_samples:,} samples, {totals.n_tokens:,} tokens of "
        f"{tokenizer.name} in {elapsed_s:.1f} s ({totals.n_tokens / elapsed_s:,.0f} tokens/s)"
    )
    if totals.n_skipped:
        print(f"skipped {totals.n_skipped:,} bad lines, the first: {totals.first_skipped}")
    return 0
