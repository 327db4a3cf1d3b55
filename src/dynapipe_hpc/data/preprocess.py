"""From JSONL text to a dataset, with every core and in constant memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset_writer import DatasetWriter
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.replacing import check_output
from dynapipe_hpc.data.tokenize_lines import Lines, TokenizedLines
from dynapipe_hpc.data.tokenize_pool import TokenizePool, open_pool
from dynapipe_hpc.data.tokenizers import Tokenizer

BLOCK_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class PreprocessOptions:
    """How to preprocess.

    Attributes:
        skip_bad: Leaves bad lines out instead of stopping at the first.
        force: Replaces the output if it exists.
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
        if tokenized.skipped and not self.n_skipped:
            self.first_skipped = tokenized.skipped[0]
        self.n_skipped += len(tokenized.skipped)


def preprocess(
    sources: Sequence[Path],
    output: Path,
    tokenizer: Tokenizer,
    options: PreprocessOptions,
    on_progress: Callable[[PreprocessTotals], None] = lambda _: None,
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
        InputError: The output exists, a source cannot be read, a line is bad, or no line is
            left.
        RunError: The output cannot be written.
    """
    _check_paths(sources, output, options.force)
    names = tuple(str(source) for source in sources)
    header = DatasetHeader(
        tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.eos_id, names
    )
    totals = PreprocessTotals()
    # Not the machine's cores: a batch job may have been given fewer.
    n_workers = options.n_workers or len(os.sched_getaffinity(0))
    blocks = (lines for source in sources for lines in _read_blocks(source))
    with (
        DatasetWriter.create(output, header) as writer,
        open_pool(tokenizer, options.skip_bad, n_workers) as pool,
    ):
        for tokenized in _in_order(pool, blocks, most_waiting=2 * n_workers):
            writer.append(tokenized.block)
            totals.add(tokenized)
            on_progress(totals)
        if totals.n_samples == 0:
            skipped = f" ({totals.first_skipped})" if totals.n_skipped else ""
            raise InputError(f"{', '.join(names)}: no sample to write{skipped}")
    return totals


def total_bytes(sources: Sequence[Path]) -> int:
    """Size of the sources together.

    Raises:
        InputError: A source is missing.
    """
    for source in sources:
        if not source.exists():
            raise InputError(f"{source}: no such file")
    return sum(source.stat().st_size for source in sources)


def _check_paths(sources: Sequence[Path], output: Path, force: bool) -> None:
    total_bytes(sources)  # all must be there before the first is worked on
    check_output(output, sources, force)


def _read_blocks(source: Path) -> Iterator[Lines]:
    try:
        with source.open("rb") as file:
            first = 1
            while lines := file.readlines(BLOCK_BYTES):
                yield Lines(source, first, lines)
                first += len(lines)
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from None


def _in_order(
    pool: TokenizePool, blocks: Iterable[Lines], most_waiting: int
) -> Iterator[TokenizedLines]:
    """Bounds what is under way; a pool alone would read all of the sources at once."""
    waiting: deque[Future[TokenizedLines]] = deque()
    for lines in blocks:
        waiting.append(pool.submit(lines))
        if len(waiting) > most_waiting:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
