"""Shards of a dataset that many processes make: which text goes into which file."""

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_header import SCHEMA_VERSION
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.open_lines import STDIN, TextPart, can_be_cut, cut
from dynapipe_hpc.data.text.recipe import Recipe

MIN_PART_BYTES = 8 << 20
_SAMPLES_VERSION = 3
"""Raised when the same text makes other samples than before, so that older shards are not used."""
MAX_PARTS = 1024
_ALONE = "run dynapipe-hpc preprocess without mpiexec or srun"


@dataclass(frozen=True, slots=True)
class Shard:
    """A dataset made of one part of a text file.

    `n_bytes`: Size of the part in bytes, give or take a line. `source_stamp`: Size in bytes and
    modification time in ns of the complete text file. `fingerprint`: 32 hexadecimal digits that
    change with the text file, the part, the tokenizer or the settings.
    """

    part: TextPart
    n_bytes: int
    source_stamp: tuple[int, int]
    fingerprint: str

    @property
    def name(self) -> str:
        """Name of the shard's file; a file of this name need not be made again."""
        return f"{self.fingerprint}.h5"

    def check_source(self) -> None:
        """Checks that the text file has not changed since the shards were laid out."""
        if _stamp(self.part.path) != self.source_stamp:
            raise InputError(
                f"{self.part.path}: changed while it was read; start again when it is complete"
            )


def shard_folder(output: Path) -> Path:
    """The folder of a dataset's shards, next to the dataset."""
    return output.with_name(f"{output.name}.shards")


def lay_out_shards(sources: Sequence[Path], recipe: Recipe, skip_bad: bool) -> list[Shard]:
    """Cuts the sources into shards, in their order.

    Every source makes at least one shard, and a large one makes several, so that the shards of all
    sources can be balanced. The layout depends on the sources alone, not on the number of
    processes, so that any number of them can continue what others began.
    """
    stamps = [_stamp(source) for source in sources]
    part_bytes = max(MIN_PART_BYTES, sum(n_bytes for n_bytes, _ in stamps) // MAX_PARTS)
    settings = [SCHEMA_VERSION, _SAMPLES_VERSION, *recipe.settings, skip_bad]
    return [
        _shard(part, stamp, settings)
        for source, stamp in zip(sources, stamps, strict=True)
        for part in _parts(source, stamp[0], part_bytes)
    ]


def share_out(shards: Sequence[Shard], n_ranks: int) -> list[list[Shard]]:
    """Assigns shards to ranks, largest first, each to the rank with the fewest bytes so far."""
    shares: list[list[Shard]] = [[] for _ in range(n_ranks)]
    loads = [0] * n_ranks
    for shard in sorted(shards, key=lambda shard: shard.n_bytes, reverse=True):
        rank = loads.index(min(loads))
        shares[rank].append(shard)
        loads[rank] += shard.n_bytes
    return shares


def _parts(source: Path, n_bytes: int, part_bytes: int) -> list[TextPart]:
    """Parts of a source; compressed text and tables are one part, however large."""
    try:
        return cut(source, n_bytes, part_bytes) if can_be_cut(source) else [TextPart(source)]
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from None


def _shard(part: TextPart, stamp: tuple[int, int], settings: list[object]) -> Shard:
    start, end = part.start, stamp[0] if part.end is None else part.end
    facts = [os.fsencode(part.path.resolve()).hex(), stamp, start, end, settings]
    fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    return Shard(part, end - start, stamp, fingerprint)


def _stamp(source: Path) -> tuple[int, int]:
    if source == STDIN:
        raise InputError(f"standard input: ranks cannot share it; {_ALONE}")
    try:
        found = source.stat()
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{source}: not a regular file, so ranks cannot share it; {_ALONE}")
    return found.st_size, found.st_mtime_ns
