"""Preprocessing: turns JSONL text into a dataset, on every core and in constant memory."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynapipe_hpc.data.atomic_write import check_output, remove_left_over
from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.open_lines import STDIN, TextPart, can_be_cut, read_blocks
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.shard import shard_folder
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
    """Counts of what preprocessing has done so far.

    `first_skipped`: File, line number and reason of the first bad line; empty if none is bad.
    """

    n_bytes: int = 0
    n_records: int = 0
    n_samples: int = 0
    n_tokens: int = 0
    n_skipped: int = 0
    first_skipped: str = ""
    notes: Counter[str] = field(default_factory=Counter)

    def add(self, later: "PreprocessTotals") -> None:
        """Adds the counts of text that comes later in the sources."""
        self.n_bytes += later.n_bytes
        self.n_records += later.n_records
        self.n_samples += later.n_samples
        self.n_tokens += later.n_tokens
        self.first_skipped = self.first_skipped or later.first_skipped
        self.n_skipped += later.n_skipped
        self.notes.update(later.notes)


OnProgress = Callable[[PreprocessTotals], None]
"""Function called after every block, with the counts so far."""


def preprocess(
    sources: Sequence[Path],
    output: Path,
    recipe: Recipe,
    options: PreprocessOptions,
    *,
    on_progress: OnProgress = lambda _: None,
) -> PreprocessTotals:
    """Tokenizes the lines of all sources, in order, into one dataset.

    Memory does not grow with the sources: a few blocks of about 128 KiB are under way at a
    time. The samples do not depend on the number of worker processes.

    `sources`: Files of records, as `Recipe` takes them; `-` for standard input.
    """
    total_bytes(sources)  # all must exist before work on the first starts
    check_dataset_output(output, sources, options.force)
    remove_left_over(output)
    if (folder := shard_folder(output)).exists():
        raise InputError(
            f"{folder}: holds parts of {output}; continue: mpiexec -n 1 dynapipe-hpc preprocess, "
            "or remove the folder first"
        )
    # Not the number of cores of the machine: a batch job may have been given fewer.
    n_workers = options.n_workers or len(os.sched_getaffinity(0))
    parts = [TextPart(source) for source in sources]
    with (
        DatasetWriter.create(output, header_of(recipe, sources)) as writer,
        open_pool(recipe, n_workers) as pool,
    ):
        totals = write_parts(
            writer, parts, pool, skip_bad=options.skip_bad, on_progress=on_progress
        )
        _check_not_empty(totals, sources)
    return totals


def check_dataset_output(output: Path, sources: Sequence[Path], force: bool) -> None:
    """Checks, before the work starts, that a dataset can and may be written."""
    check_output(output, sources, force)
    if (suffix := output.suffix.lower()) in SOURCE_SUFFIXES:
        raise InputError(
            f"{output}: is the output, a dataset, but {suffix} is the name of a source; name the "
            "output last, such as corpus.h5"
        )


def write_parts(
    writer: DatasetWriter,
    parts: Sequence[TextPart],
    pool: TokenizePool,
    *,
    skip_bad: bool,
    on_progress: OnProgress,
) -> PreprocessTotals:
    """Tokenizes parts of text, in order, into a dataset."""
    totals = PreprocessTotals()
    for tokenized in pool(lines for part in parts for lines in read_blocks(part)):
        bad, block = tokenized.bad, tokenized.block
        first_bad = bad[0].describe() if bad and not totals.n_skipped else ""
        if bad and not skip_bad:
            advice = "; correct it, or leave it out with preprocess --skip-bad"
            raise InputError(f"{first_bad}{'' if bad[0].is_format else advice}")
        writer.append(block)
        counts = tokenized.n_bytes, tokenized.n_records, len(block.tasks), block.n_tokens
        totals.add(PreprocessTotals(*counts, len(bad), first_bad, tokenized.notes))
        on_progress(totals)
    return totals


def header_of(recipe: Recipe, sources: Sequence[Path]) -> DatasetHeader:
    """The header of a dataset, which names its tokenizer and sources."""
    tokenizer = recipe.tokenizer
    return DatasetHeader(
        tokenizer.name,
        tokenizer.sha256,
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.start_id,
        tuple(str(source) for source in sources),
        special_tokens=tokenizer.special_tokens,
        turns=recipe.turns if recipe.template and not recipe.format.has_pairs else "",
        has_pairs=recipe.format.has_pairs,
        vocabulary_sha256=tokenizer.vocabulary_sha256,
        transformers=tokenizer.transformers,
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
        return status.st_size if stat.S_ISREG(status.st_mode) and can_be_cut(source) else None
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from None


def _check_not_empty(totals: PreprocessTotals, sources: Sequence[Path]) -> None:
    if totals.n_samples == 0:
        skipped = f" ({totals.first_skipped})" if totals.n_skipped else ""
        raise InputError(f"{', '.join(map(str, sources))}: no sample to write{skipped}")
