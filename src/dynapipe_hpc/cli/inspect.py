"""`dynapipe-hpc inspect PATH`: describes a dataset, a cost table, or the folder of a model."""

import argparse
import os.path
from pathlib import Path

from dynapipe_hpc.cli.help_text import examples
from dynapipe_hpc.data.errors import InputError, escaped


def register(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the verb."""
    parser = verbs.add_parser(
        "inspect",
        help="show what is in a dataset, a cost table or the folder of a model",
        description=(
            "Prints counts, length percentiles per task and a histogram of lengths of a dataset, "
            "or the layers, ranges and link of a cost table. With --config, also the longest "
            "samples of a dataset that fit in memory, per recompute mode, or whether a cost table "
            "fits the experiment. Of the folder of a model, prints the families that can train "
            "it, or why none can."
        ),
        epilog=examples(
            "dynapipe-hpc inspect corpus.h5 --verify --show 3 --tokenizer tokenizer.json",
            "dynapipe-hpc inspect corpus.h5 --config configs/tiny_cpu.toml",
            "dynapipe-hpc inspect models/gemma-2-2b",
        ),
    )
    parser.add_argument("file", type=Path, metavar="PATH", help="file, or folder of a model")
    parser.add_argument(
        "--config", metavar="CONFIG", type=Path, help="also show what fits this experiment (TOML)"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="also read all samples or costs and compare them with their checksums",
    )
    parser.add_argument(
        "--show",
        type=int,
        metavar="N",
        help="also print the first N samples of a dataset, and which of their tokens are trained",
    )
    parser.add_argument(
        "--tokenizer",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="with --show, print text instead of token ids; as for preprocess",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the description."""
    if arguments.show is not None and arguments.show < 1:
        raise InputError(f"--show {arguments.show}: at least one sample is needed")
    if os.path.isdir(arguments.file):  # noqa: PTH112 - Path.is_dir fails on long names
        _check_for_files_only(arguments)
        from dynapipe_hpc.training.huggingface.describe_model import describe_model

        print(escaped(describe_model(arguments.file)))
        return 0
    if arguments.tokenizer and not arguments.show:
        raise InputError("--tokenizer is used with --show only; add --show N, or leave it out")
    # Imported here, because it loads HDF5, which other verbs do not need.
    from dynapipe_hpc.experiment.explain.describe_file import (
        describe_file,
        describe_for,
        verify_file,
    )
    from dynapipe_hpc.experiment.load import load_config

    print(escaped(describe_file(arguments.file)))
    if arguments.config is not None:
        described = describe_for(load_config(arguments.config), arguments.file)
        print(f"\n{escaped(described)}")
    if arguments.show:
        from dynapipe_hpc.data.text.show_samples import show_samples
        from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer

        tokenizer = read_tokenizer(arguments.tokenizer)
        print(f"\n{show_samples(arguments.file, arguments.show, tokenizer)}")
    if arguments.verify:
        print(f"\n{verify_file(arguments.file)}")
    return 0


def _check_for_files_only(arguments: argparse.Namespace) -> None:
    """Refuses options that say nothing of the folder of a model."""
    names = [f"--{n}" for n in ("config", "verify", "show", "tokenizer") if getattr(arguments, n)]
    if names:
        raise InputError(
            f"{arguments.file}: is a folder, but {', '.join(names)} of inspect "
            "can be used with files only; leave out what does not apply"
        )
