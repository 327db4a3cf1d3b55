"""Preprocessing: turns JSONL text into a dataset, on every core and in constant memory."""

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.atomic_write import check_output, remove_left_over
from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.open_lines import STDIN, is_plain_text, read_blocks
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.tokenize_lines import TokenizePool, open_pool

SOURCE_SUFFIXES = frozenset(
    (".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet", ".arrow", ".gz", ".zst")
)
"""Suffixes of the names of sources, which no dataset has."""


@dataclass(frozen=True, slots=True)
class PreprocessOptions:
    """Options of preprocessing."""

    skip_bad: bool = False  # whether to leave out bad lines instead of stopping at the first
    force: bool = False  # whether to replace the output if it is a dataset
    n_workers: int = 0  # number of worker processes, which tokenize; 0 for one per core


@dataclass(slots=True)
class PreprocessTotals:
    """Counts of what preprocessing has done so far."""

    n_bytes: int = 0
    n_records: int = 0
    n_samples: int = 0
    n_tokens: int = 0
    n_skipped: int = 0
    first_skipped: str = ""  # file, line number and reason of the first bad line


OnProgress = Callable[[float | None, PreprocessTotals], None]
"""Function called after every block, with the finished share, None if unknown, and the counts."""


def preprocess(
    sources: Sequence[Path],
    output: Path,
    recipe: Recipe,
    options: PreprocessOptions,
    *,
    on_progress: OnProgress = lambda *_: None,
) -> PreprocessTotals:
    """Tokenizes the lines of all sources, in order, into one dataset.

    Memory does not grow with the sources: a few blocks of about 128 KiB are under way at a
    time. The samples do not depend on the number of worker processes.

    `sources`: Files of records, as `Recipe` takes them; `-` for standard input.
    """
    check_files(sources, output, force=options.force)
    # Not the number of cores of the machine: a batch job may have been given fewer.
    n_workers = options.n_workers or len(os.sched_getaffinity(0))
    with open_pool(recipe, n_workers) as pool:
        return write_dataset(sources, output, recipe, options, pool=pool, on_progress=on_progress)


def check_files(sources: Sequence[Path], output: Path, *, force: bool) -> None:
    """Checks, before the work starts, that all sources exist, and that a dataset may be written."""
    total_bytes(sources)
    check_output(output, sources, force)
    if (suffix := output.suffix.lower()) in SOURCE_SUFFIXES:
        raise InputError(
            f"{output}: is the output, a dataset, but {suffix} is the name of a source; name the "
            "output last, such as corpus.h5"
        )
    remove_left_over(output)


def write_dataset(
    sources: Sequence[Path],
    output: Path,
    recipe: Recipe,
    options: PreprocessOptions,
    *,
    pool: TokenizePool,
    on_progress: OnProgress,
) -> PreprocessTotals:
    """Writes a dataset: the samples that a pool makes from all sources' lines, in order."""
    totals, n_bytes = PreprocessTotals(), total_bytes(sources)
    with DatasetWriter.create(output, header_of(recipe, sources)) as writer:
        for tokenized in pool(lines for source in sources for lines in read_blocks(source)):
            bad, block = tokenized.bad, tokenized.block
            if bad and not options.skip_bad:
                advice = "; correct it, or leave it out with preprocess --skip-bad"
                raise InputError(f"{bad[0].describe()}{'' if bad[0].is_format else advice}")
            if bad and not totals.n_skipped:
                totals.first_skipped = bad[0].describe()
            writer.append(block)
            totals.n_bytes += tokenized.n_bytes
            totals.n_records += tokenized.n_records
            totals.n_samples += len(block.tasks)
            totals.n_tokens += sum(map(len, block.tokens))
            totals.n_skipped += len(bad)
            on_progress(None if n_bytes is None else totals.n_bytes / max(1, n_bytes), totals)
        if totals.n_samples == 0:
            skipped = f" ({totals.first_skipped})" if totals.n_skipped else ""
            raise InputError(f"{', '.join(map(str, sources))}: no sample to write{skipped}")
    return totals


def header_of(recipe: Recipe, sources: Sequence[Path]) -> DatasetHeader:
    """The header of a dataset, which names its tokenizer and sources."""
    tokenizer, files = recipe.tokenizer, recipe.tokenizer.files
    return DatasetHeader(
        files.name,
        files.sha256,
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.start_id,
        tuple(str(source) for source in sources),
        special_tokens=tokenizer.special_tokens,
        turns=recipe.turns if recipe.template and not recipe.format.has_pairs else "",
        has_pairs=recipe.format.has_pairs,
        vocabulary_sha256=files.vocabulary_sha256,
        transformers=files.transformers,
    )


def total_bytes(sources: Sequence[Path]) -> int | None:
    """Bytes of text in all sources; None if that is unknown, as for a pipe or compressed text."""
    sizes = [_text_bytes(source) for source in sources]
    return None if None in sizes else sum(filter(None, sizes))


def _text_bytes(source: Path) -> int | None:
    if source == STDIN:
        return None
    try:
        status = source.stat()
        return status.st_size if stat.S_ISREG(status.st_mode) and is_plain_text(source) else None
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from None
