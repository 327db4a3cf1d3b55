"""From JSONL text to a dataset, with every core and in constant memory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.dataset.open_dataset import DATASET
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.output_file import check_output
from dynapipe_hpc.data.replacing import remove_left_over
from dynapipe_hpc.data.text.shard import shard_folder
from dynapipe_hpc.data.text.text_part import TextPart, read_blocks
from dynapipe_hpc.data.text.tokenize_lines import TokenizedLines
from dynapipe_hpc.data.text.tokenize_pool import TokenizePool, open_pool
from dynapipe_hpc.data.text.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class PreprocessOptions:
    """How to preprocess.

    Attributes:
        skip_bad: Leaves bad lines out instead of stopping at the first.
        force: Replaces the output if it is a dataset.
        n_workers: Processes that tokenize; 0 for one per core.
    """

    skip_bad: bool = False
    force: bool = False
    n_workers: int = 0

    def __post_init__(self) -> None:
        """Checks the number of workers."""
        if self.n_workers < 0:
            raise InputError(f"--workers {self.n_workers}: must be 1 or more; 0 is one per core")


@dataclass(slots=True)
class PreprocessTotals:
    """What was done so far.

    Attributes:
        n_bytes: Text read.
        n_samples: Samples written.
        n_tokens: Tokens written, of inputs and targets.
        n_skipped: Bad lines left out.
        first_skipped: Why the first bad line is bad, with file and line number; else empty.
    """

    n_bytes: int = 0
    n_samples: int = 0
    n_tokens: int = 0
    n_skipped: int = 0
    first_skipped: str = ""

    def add(self, tokenized: TokenizedLines) -> None:
        """Counts some more lines."""
        self.n_bytes += tokenized.n_bytes
        self.n_samples += len(tokenized.block.tasks)
        self.n_tokens += tokenized.block.n_tokens
        if tokenized.bad and not self.n_skipped:
            self.first_skipped = tokenized.bad[0].describe()
        self.n_skipped += len(tokenized.bad)

    def add_totals(self, later: "PreprocessTotals") -> None:
        """Counts what was done with the text behind."""
        self.n_bytes += later.n_bytes
        self.n_samples += later.n_samples
        self.n_tokens += later.n_tokens
        self.first_skipped = self.first_skipped or later.first_skipped
        self.n_skipped += later.n_skipped


OnProgress = Callable[[PreprocessTotals], None]
"""Called after every block, with what was done so far."""


def preprocess(
    sources: Sequence[Path],
    output: Path,
    tokenizer: Tokenizer,
    options: PreprocessOptions,
    on_progress: OnProgress = lambda _: None,
) -> PreprocessTotals:
    """Tokenizes the lines of all sources, in order, into one dataset.

    Memory does not grow with the sources: a few blocks of about 128 KiB are under way at a
    time. The samples do not depend on the number of workers.

    Args:
        sources: JSONL files: objects with `inputs`, `targets` and, if they like, `task`.
        output: The dataset to write. It appears when it is complete.
        tokenizer: Makes the tokens.
        options: What to do with bad lines, an existing output, and cores.
        on_progress: Called after every block.

    Raises:
        InputError: The output exists, or shards of it; a source cannot be read, a line is bad, or
            no line is left.
        RunError: The output cannot be written.
    """
    total_bytes(sources)  # all must be there before the first is worked on
    check_output(output, sources, DATASET, options.force)
    remove_left_over(output)
    if (folder := shard_folder(output)).exists():
        raise InputError(
            f"{folder}: holds shards of {output}; go on with mpiexec -n 1 dynapipe-hpc preprocess, "
            "or remove the folder first"
        )
    # Not the machine's cores: a batch job may have been given fewer.
    n_workers = options.n_workers or len(os.sched_getaffinity(0))
    parts = [TextPart(source) for source in sources]
    with (
        DatasetWriter.create(output, header_of(tokenizer, sources)) as writer,
        open_pool(tokenizer, n_workers) as pool,
    ):
        totals = write_parts(writer, parts, pool, options.skip_bad, on_progress)
        _check_not_empty(totals, sources)
    return totals


def write_parts(
    writer: DatasetWriter,
    parts: Sequence[TextPart],
    pool: TokenizePool,
    skip_bad: bool,
    on_progress: OnProgress,
) -> PreprocessTotals:
    """Tokenizes parts of text, in order, into a dataset.

    Raises:
        InputError: A part cannot be read, or a line is bad and `skip_bad` not set.
        RunError: The dataset cannot be written, or a worker died.
    """
    totals = PreprocessTotals()
    for tokenized in pool.tokenize(lines for part in parts for lines in read_blocks(part)):
        if tokenized.bad and not skip_bad:
            first = tokenized.bad[0]
            advice = "" if first.is_format else "; correct it, or leave it out with --skip-bad"
            raise InputError(f"{first.describe()}{advice}")
        writer.append(tokenized.block)
        totals.add(tokenized)
        on_progress(totals)
    return totals


def header_of(tokenizer: Tokenizer, sources: Sequence[Path]) -> DatasetHeader:
    """What a dataset says of its tokenizer and sources."""
    return DatasetHeader(
        tokenizer.name,
        tokenizer.sha256,
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tuple(str(source) for source in sources),
        special_tokens=tokenizer.special_tokens,
    )


def total_bytes(sources: Sequence[Path]) -> int:
    """Size of the sources together.

    Raises:
        InputError: A source is missing.
    """
    sizes = []
    for source in sources:
        try:
            sizes.append(source.stat().st_size)
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror}") from None
    return sum(sizes)


def _check_not_empty(totals: PreprocessTotals, sources: Sequence[Path]) -> None:
    if totals.n_samples == 0:
        skipped = f" ({totals.first_skipped})" if totals.n_skipped else ""
        raise InputError(f"{', '.join(map(str, sources))}: no sample to write{skipped}")
