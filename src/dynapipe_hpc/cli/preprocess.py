"""`dynapipe-hpc preprocess IN.jsonl... OUT.h5`: tokenizes text into a dataset."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped, printable
from dynapipe_hpc.data.text.record_format import RecordFormat
from dynapipe_hpc.job.launch_environment import read_started

if TYPE_CHECKING:
    from dynapipe_hpc.data.text.preprocess import PreprocessTotals
    from dynapipe_hpc.data.text.recipe import Recipe
    from dynapipe_hpc.data.text.tokenizers import Tokenizer


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "preprocess",
        help="tokenize text into a dataset; alone, or with mpiexec or srun",
        description=(
            "Tokenizes records (JSON lines, plain or compressed; Parquet or Arrow tables; - for "
            "standard input): pairs of an input and a target, Alpaca's instructions, "
            "conversations, preference pairs or plain text; data/README.md describes them. With "
            "mpiexec or srun, the ranks share the work, OUT.h5 is an index of the shards in "
            "OUT.h5.shards, and the same command, started again, continues where it stopped."
        ),
        epilog=examples(
            "dynapipe-hpc preprocess corpus.jsonl corpus.h5",
            "dynapipe-hpc preprocess chats.parquet chats.h5 --tokenizer Qwen2.5-7B-Instruct/",
            "mpiexec -n 8 dynapipe-hpc preprocess part-*.jsonl corpus.h5 --workers 1",
        ),
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT.h5")
    parser.add_argument(
        "--tokenizer",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help=(
            "the folder of a Hugging Face model; or its tokenizer.json; or, given twice, "
            "VOCAB.json and MERGES.txt; without it, bytes"
        ),
    )
    parser.add_argument(
        "--format",
        choices=[each.value for each in RecordFormat],
        metavar="FORMAT",
        help=(
            f"shape of the records: {', '.join(RecordFormat)}; default: what the first line shows, "
            "or pairs from a pipe"
        ),
    )
    for side in ("inputs", "targets"):
        parser.add_argument(
            f"--{side}-field",
            metavar="NAME",
            help=f"the field of a pair's {side[:-1]}; default: {side}",
        )
    parser.add_argument(
        "--template",
        type=Path,
        metavar="FILE",
        help=(
            "chat template (Jinja) of conversations, or of pairs as messages; default: of "
            "conversations the tokenizer folder's own, of pairs none"
        ),
    )
    parser.add_argument(
        "--turns",
        choices=("each", "last", "whole"),
        default="each",
        help=(
            "samples of a conversation in which the template writes a turn differently when others "
            "follow, for example without its reasoning; each = one sample per such turn, as the "
            "model sees it when it answers; last = one of the whole text, of which the last turn "
            "is trained; whole = one of the whole text, with all turns trained as they stand "
            "there; default: each"
        ),
    )
    parser.add_argument("--eos", metavar="TOKEN", help="the token that ends a target")
    parser.add_argument(
        "--start",
        metavar="TOKEN",
        help=(
            "the token that a model reads before every sample, or none; default: the one that the "
            "tokenizer puts before text, else the token that ends a target"
        ),
    )
    parser.add_argument(
        "--inputs-end",
        metavar="TOKEN",
        help="the token that ends an input, or none; default: none, but </s> for a T5's tokenizer",
    )
    parser.add_argument(
        "--special-tokens",
        action="store_true",
        help="turn text such as <|endoftext|> into special tokens; without it, it is plain text",
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave bad lines out")
    parser.add_argument("--force", action="store_true", help="replace OUT.h5 if it is a dataset")
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="number of processes per rank that tokenize; default: one per core",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Tokenizes and prints what was written."""
    # A process started alone needs no MPI, which login nodes often lack.
    started = read_started(os.environ, n_usable_cores=1)
    alone = started.launcher is None and started.interface is None
    return _run_alone(arguments) if alone else _run_together(arguments)


def _run_alone(arguments: argparse.Namespace) -> int:
    # Imported here, because they load HDF5 and the tokenizers, which other verbs do not need.
    from dynapipe_hpc.cli.progress import text_progress
    from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess, total_bytes

    # Batch systems send SIGTERM before they kill; unwinding leaves no partial file.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    start_s = time.perf_counter()
    options = PreprocessOptions(arguments.skip_bad, arguments.force, arguments.workers)
    recipe = _load_recipe(arguments)
    with text_progress(total_bytes(arguments.sources)) as progress:
        totals = preprocess(
            arguments.sources,
            arguments.output,
            recipe,
            options,
            on_progress=lambda done: progress.show(done.n_bytes, done.n_tokens),
        )
    _tell(f"{arguments.output}:", recipe.tokenizer, totals, start_s)
    return 0


def _run_together(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.data.text.preprocess import PreprocessOptions
    from dynapipe_hpc.experiment.preprocess.preprocess_job import preprocess_together
    from dynapipe_hpc.job.job import open_job

    start_s = time.perf_counter()
    with open_job() as job:
        with job.fail_together():
            options = PreprocessOptions(arguments.skip_bad, arguments.force, arguments.workers)
            recipe = _load_recipe(arguments)
        with share_progress("preprocess", shown=job.is_first) as on_share:
            made = preprocess_together(
                job, arguments.sources, arguments.output, recipe, options=options, on_share=on_share
            )
        if job.is_first:
            total = f"{made.n_samples:,} samples in {made.n_shards:,} shards"
            what = f"{arguments.output}: {total}, {made.n_reused:,} of them by an earlier job; made"
            _tell(what, recipe.tokenizer, made.totals, start_s)
    return 0


def _load_recipe(arguments: argparse.Namespace) -> "Recipe":
    from dynapipe_hpc.data.text.chat_turns import Turns
    from dynapipe_hpc.data.text.recipe import format_of_sources, recipe_of
    from dynapipe_hpc.data.text.records import PairFields
    from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
    from dynapipe_hpc.data.text.tokenizers import load_tokenizer

    named = {side: getattr(arguments, f"{side}_field") for side in ("inputs", "targets")}
    fields = PairFields(**{side: name for side, name in named.items() if name})
    if arguments.format:
        record_format = RecordFormat(arguments.format)
    else:
        record_format = format_of_sources(arguments.sources, fields)
    if fields != PairFields() and record_format not in (RecordFormat.PAIRS, RecordFormat.MESSAGES):
        raise InputError(f"--inputs-field and --targets-field: {record_format} has its own fields")
    files = read_tokenizer(arguments.tokenizer)
    tokenizer = load_tokenizer(
        files,
        arguments.eos,
        start_token=arguments.start,
        input_end_token=arguments.inputs_end,
        special_tokens=arguments.special_tokens,
    )
    return recipe_of(
        tokenizer,
        files,
        record_format,
        fields=fields,
        template=arguments.template,
        turns=Turns(arguments.turns),
        names_start=arguments.start is not None,
    )


def _tell(what: str, tokenizer: "Tokenizer", totals: "PreprocessTotals", start_s: float) -> None:
    elapsed_s = time.perf_counter() - start_s
    summary = (
        f"{what} {totals.n_samples:,} samples, {totals.n_tokens:,} tokens of "
        f"{tokenizer.name} in {elapsed_s:.1f} s ({totals.n_tokens / elapsed_s:,.0f} tokens/s)"
    )
    print(escaped(summary))
    if totals.n_samples > totals.n_records:
        print(
            f"{totals.n_samples:,} samples of {totals.n_records:,} conversations: a turn that the "
            "template writes otherwise when others follow is a sample of its own (--turns each)"
        )
    for note, n_records in totals.notes.items():
        print(f"{n_records:,} records: {escaped(note)}")
    if totals.n_skipped:
        first = printable(totals.first_skipped)
        print(f"skipped {totals.n_skipped:,} bad lines, the first: {first}")
