"""Verbs about samples and models: preprocess, inspect, demo-corpus, import, export, generate."""

import argparse
import os.path
import signal
import sys
import time
from typing import TYPE_CHECKING

from dynapipe_hpc.cli.verb import FORCE, number, open_ranks, option, output, say, switch, verb
from dynapipe_hpc.data.atomic_write import check_output
from dynapipe_hpc.data.errors import InputError, printable
from dynapipe_hpc.data.text.record_fields import RecordFormat

if TYPE_CHECKING:
    from pathlib import Path

    from dynapipe_hpc.data.text.preprocess import PreprocessTotals
    from dynapipe_hpc.data.text.recipe import Recipe
    from dynapipe_hpc.data.text.tokenizers import Tokenizer


@verb(
    "tokenize text into a dataset; alone, or with mpiexec or srun",
    "Tokenizes records (JSON lines or arrays, plain or compressed; Parquet or Arrow tables; - for "
    "standard input): pairs of an input and a target, Alpaca's instructions, conversations, "
    "preference pairs or plain text; data/README.md describes them. With mpiexec or srun, the "
    "ranks share the work.",
    option("sources IN", "files of records, or - for standard input", nargs="+"),
    option("output OUT.h5", "the dataset"),
    option(
        "--tokenizer PATH",
        "the folder of a Hugging Face model, or its tokenizer.json; without it, bytes",
    ),
    option(
        "--format FORMAT",
        f"shape of the records: {', '.join(RecordFormat)}; default: detected from the first "
        "line; pairs if read from a pipe",
        str,
        choices=[each.value for each in RecordFormat],
    ),
    option("--inputs-field NAME", "the field of a pair's input; default: inputs", str),
    option("--targets-field NAME", "the field of a pair's target; default: targets", str),
    option(
        "--template FILE",
        "chat template (Jinja) for conversations, or to render pairs as messages; default: the "
        "tokenizer folder's for conversations, none for pairs",
    ),
    option(
        "--turns",
        "how to make samples of a conversation in which the template changes a turn (for example, "
        "drops its reasoning) when more turns follow: each = a sample per such turn, as the model "
        "sees it when it answers; last = one sample of the whole text that trains only the last "
        "turn; whole = one sample of the whole text that trains all turns; default: each",
        str,
        choices=("each", "last", "whole"),
        default="each",
    ),
    option("--eos TOKEN", "the token that ends a target", str),
    option(
        "--start TOKEN",
        "the token that a model reads before every sample, or none; default: the one that the "
        "tokenizer puts before text, else the token that ends a target",
        str,
    ),
    option(
        "--inputs-end TOKEN",
        "the token that ends an input, or none; default: none, but </s> for a T5's tokenizer",
        str,
    ),
    switch(
        "--special-tokens",
        "turn text such as <|endoftext|> into special tokens; otherwise it stays plain text",
    ),
    switch("--skip-bad", "leave bad lines out"),
    FORCE,
    number(
        "--workers N",
        "number of processes per rank that tokenize; default: 0, which means one per core",
        0,
        default=0,
    ),
)
def preprocess(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.data.text import preprocess as alone
    from dynapipe_hpc.job.ranks import Alone

    options = alone.PreprocessOptions(arguments.skip_bad, arguments.force, arguments.workers)
    sources, output = arguments.sources, arguments.output
    with open_ranks() as ranks, share_progress("preprocess", shown=ranks.is_first) as show:
        start_s = time.perf_counter()

        def on_progress(share: float | None, done: "PreprocessTotals") -> None:
            rate = done.n_tokens / (time.perf_counter() - start_s)
            show(share, f"{done.n_tokens:,} tokens, {rate:,.0f} tokens/s")

        if isinstance(ranks, Alone):
            # Batch systems send SIGTERM before they kill; unwinding leaves no partial file.
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            recipe = _load_recipe(arguments)
            totals = alone.preprocess(sources, output, recipe, options, on_progress=on_progress)
        else:
            from dynapipe_hpc.experiment.preprocess_job import preprocess_together

            # On one rank: the library that reads a tokenizer takes memory.
            recipe = ranks.on_first(lambda: _load_recipe(arguments))
            totals = preprocess_together(
                ranks, sources, output, recipe, options=options, on_progress=on_progress
            )
    if ranks.is_first:
        _tell(output, recipe.tokenizer, totals, start_s)
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
    tokenizer = load_tokenizer(
        read_tokenizer(arguments.tokenizer),
        arguments.eos,
        start_token=arguments.start,
        input_end_token=arguments.inputs_end,
        special_tokens=arguments.special_tokens,
    )
    return recipe_of(
        tokenizer,
        record_format,
        fields=fields,
        template=arguments.template,
        turns=Turns(arguments.turns),
        names_start=arguments.start is not None,
    )


def _tell(
    output: "Path", tokenizer: "Tokenizer", totals: "PreprocessTotals", start_s: float
) -> None:
    elapsed_s = time.perf_counter() - start_s
    say(
        f"{output}: {totals.n_samples:,} samples, {totals.n_tokens:,} tokens of "
        f"{tokenizer.files.name} in {elapsed_s:.1f} s ({totals.n_tokens / elapsed_s:,.0f} tokens/s)"
    )
    if totals.n_samples > totals.n_records:
        say(
            f"{totals.n_samples:,} samples of {totals.n_records:,} conversations: a turn that the "
            "template writes differently when more follow is a separate sample (--turns each)"
        )
    if totals.n_skipped:
        print(
            f"skipped {totals.n_skipped:,} bad lines, the first: {printable(totals.first_skipped)}"
        )


@verb(
    "show what is in a dataset, a cost table or the folder of a model",
    "Prints counts, length percentiles per task and a histogram of lengths of a dataset, or the "
    "layers, ranges and network link of a cost table. For a model's folder, prints the families "
    "that can train it, or why none can.",
    option("file PATH", "file, or folder of a model"),
    switch("--verify", "also read all samples or costs and compare them with their checksums"),
    number(
        "--show N",
        "also print the first N samples of a dataset, and which of their tokens are trained",
        1,
    ),
    option("--tokenizer PATH", "with --show, print text instead of token ids; as for preprocess"),
)
def inspect(arguments: argparse.Namespace) -> int:
    if os.path.isdir(arguments.file):  # noqa: PTH112 - Path.is_dir fails on long names
        if arguments.verify or arguments.show or arguments.tokenizer:
            raise InputError(
                f"{arguments.file}: is a folder, but --verify, --show and --tokenizer are for "
                "files; leave them out"
            )
        from dynapipe_hpc.training.huggingface.describe_model import describe_model

        say(describe_model(arguments.file))
        return 0
    if arguments.tokenizer and not arguments.show:
        raise InputError("--tokenizer is used with --show only; add --show N, or leave it out")
    from dynapipe_hpc.data.dataset import dataset_header
    from dynapipe_hpc.data.dataset.dataset_file import verify_dataset
    from dynapipe_hpc.data.stored_file import format_of
    from dynapipe_hpc.data.text.show_dataset import describe_dataset
    from dynapipe_hpc.planner.cost.table import profile_file
    from dynapipe_hpc.planner.cost.table.profile_table import checksum_of, describe_table

    stored, path = format_of(arguments.file), arguments.file
    verified = ""
    if stored == profile_file.FORMAT:
        table = profile_file.read_table(path)  # compares its checksum
        verified = f"checksum of the costs {checksum_of(table)}"
        say(describe_table(table, path))
    elif stored == dataset_header.FORMAT:
        say(describe_dataset(path))
    else:
        raise InputError(
            f"{path}: neither a dataset nor a cost table; dynapipe-hpc preprocess makes the former "
            "and dynapipe-hpc profile the latter"
        )
    if arguments.show:
        from dynapipe_hpc.data.text.show_dataset import show_samples
        from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer

        tokenizer = read_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
        print(f"\n{show_samples(arguments.file, arguments.show, tokenizer)}")
    if arguments.verify:
        print(f"\nverified, {verified or f'sha256 of the samples {verify_dataset(path)}'}")
    return 0


@verb(
    "make a corpus of instruction tasks to try everything with",
    "Writes JSON lines of small tasks whose lengths are as uneven as in real data.",
    option("output OUT.jsonl"),
    number("--samples N", "samples to make (default 10000)", 1, default=10_000),
    option("--seed S", "random seed of the samples (default 0)", int, default=0),
    number(
        "--max-bytes B",
        "longest sample in bytes (default 8192); no effect with --chat or --preferences",
        256,
        default=8192,
    ),
    switch("--chat", "make conversations (lists of messages) instead"),
    switch("--preferences", "make conversations with a right and a wrong last answer instead"),
    option(
        "--model FOLDER", "also write a small Llama of random weights to fine-tune on OUT.jsonl"
    ),
    FORCE,
)
def demo_corpus(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.data import demo_corpus as corpus

    if arguments.chat and arguments.preferences:
        raise InputError("--chat and --preferences are two kinds of samples; leave one out")
    if arguments.model:
        from dynapipe_hpc.job.starter_files import home_of_starter_files
        from dynapipe_hpc.training.huggingface.demo_model import write_demo_model

        tokenizer = home_of_starter_files() / "configs" / "demo_finetune" / "tokenizer"
        write_demo_model(arguments.model, tokenizer)
        say(f"{arguments.model}: a Llama of a million random weights")
    check_output(arguments.output, [], arguments.force)
    n_samples, seed = arguments.samples, arguments.seed
    if arguments.chat:
        samples = corpus.demo_chats(n_samples, seed)
    elif arguments.preferences:
        samples = corpus.demo_preferences(n_samples, seed)
    else:
        samples = corpus.demo_samples(n_samples, seed, arguments.max_bytes)
    corpus.write_demo_corpus(arguments.output, samples)
    say(f"{arguments.output}: {arguments.samples:,} samples")
    return 0


@verb(
    "turn a Hugging Face model into a checkpoint",
    "Writes the weights of FOLDER (config.json and safetensors) as a checkpoint with which runs "
    "can begin (model.init_from). Its tokenizer files are copied along.",
    option("folder FOLDER", "Hugging Face model"),
    output("CHECKPOINT", "checkpoint to write", required=True),
)
def import_(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.training.huggingface.import_export import import_model

    origin = import_model(arguments.folder, arguments.output)
    say(f"{arguments.output}: {origin}, family {origin.shape.family}")
    return 0


@verb(
    "turn a run or a checkpoint into a Hugging Face model",
    "Writes the weights of a checkpoint as FOLDER, which transformers loads: safetensors, "
    "config.json, and the tokenizer files of the model with which the run began. For a LoRA "
    "run, writes adapters in peft's format; with --base, the base model with them merged in.",
    option("source RUN", "run (its newest checkpoint) or checkpoint"),
    output("FOLDER", "folder to write", required=True),
    option(
        "--dtype",
        "type of the weights (default: the type in the model's config.json, or float32)",
        str,
        choices=("float32", "bfloat16", "float16", "float64"),
    ),
    option(
        "--base MODEL",
        "model (Hugging Face folder, run or checkpoint) to add the adapters of RUN to",
    ),
)
def export(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.training.huggingface.import_export import export_model

    base = arguments.base
    exported = export_model(arguments.source, arguments.output, arguments.dtype, base)
    origin = exported.origin
    is_alone = origin.shape.lora is not None and base is None
    kind = "adapters for peft" if is_alone else f"as {origin.mapping.architecture}"
    say(f"{arguments.output}: {origin}, {kind}, in {exported.dtype}")
    if exported.remark:
        say(f"{arguments.output}: {exported.remark}")
    return 0


@verb(
    "show what a model writes after a prompt",
    "Writes text with a complete model in one process, to see that training worked.",
    option("model MODEL", "run, checkpoint or Hugging Face model"),
    option("--prompt TEXT", "text to continue", str, required=True),
    switch("--chat", "answer the prompt as a chat message, with the model's chat template"),
    number("--tokens N", "maximum number of tokens (default 64)", 1, default=64),
    number(
        "--temperature T",
        "divisor of logits; 0, the default, takes the likeliest token",
        0.0,
        default=0.0,
    ),
    number(
        "--top-p P",
        "choose among the likeliest tokens whose probabilities add up to P (default 1)",
        1e-6,
        1.0,
        default=1.0,
    ),
    number("--seed S", "random seed of sampling (default 0)", 0, 2**63 - 1, default=0),
    option("--tokenizer PATH", "tokenizer, as for preprocess (default: the model's own)"),
)
def generate(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.training.generate import Sampling, generate

    text = generate(
        arguments.model,
        arguments.prompt,
        arguments.tokens,
        Sampling(arguments.temperature, arguments.top_p, arguments.seed),
        tokenizer_path=arguments.tokenizer,
        chat=arguments.chat,
    )
    say(text)
    return 0
