"""Checksum of samples, independent of the files they are in."""

import hashlib

from dynapipe_hpc.data.spans import Spans
from dynapipe_hpc.data.token_block import TokenBlock, TokenSequences


class ContentHash:
    """SHA-256 over tokens, lengths, tasks and spans of samples, in their order.

    Rejected answers of preference pairs are tokens like others.

    It does not depend on how the samples are cut into blocks or files, nor on the numbers of the
    tasks: datasets with the same samples have the same hash.
    """

    def __init__(self) -> None:
        """Starts without samples."""
        # One per array, because every block adds to all of them.
        self._arrays = {
            f"{group}/{array}": hashlib.sha256()
            for group in ("inputs", "targets", "rejected")
            for array in ("tokens", "lengths")
        }
        self._tasks = hashlib.sha256()
        self._spans = {name: hashlib.sha256() for name in ("counts", "starts", "ends")}
        self._has_spans = self._has_pairs = False

    def add(self, block: TokenBlock) -> None:
        """Adds samples after those already added."""
        self._add_sequences("inputs", block.inputs)
        self._add_sequences("targets", block.targets)
        if block.rejected is not None:
            self._has_pairs = True
            self._add_sequences("rejected", block.rejected)
        # The length before each name keeps one name from reading as two.
        self._tasks.update("".join(f"{len(task)} {task}" for task in block.tasks).encode())
        self._add_spans(block.spans)

    def hexdigest(self) -> str:
        """The hash of all samples added so far, 64 hexadecimal digits."""
        # Without spans and without pairs, the hash is that of older files.
        has_all = self._has_pairs
        arrays = [of for name, of in self._arrays.items() if has_all or "rejected" not in name]
        digests = [*arrays, self._tasks]
        if self._has_spans:
            digests += self._spans.values()
        return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()

    def _add_sequences(self, group: str, sequences: TokenSequences) -> None:
        tokens = sequences.tokens.astype(sequences.tokens.dtype.newbyteorder("<"), copy=False)
        self._arrays[f"{group}/tokens"].update(tokens.data)
        self._arrays[f"{group}/lengths"].update(sequences.lengths.astype("<i8", copy=False).data)

    def _add_spans(self, spans: Spans) -> None:
        self._has_spans = self._has_spans or len(spans.starts) > 0
        self._spans["counts"].update(spans.lengths.astype("<i8", copy=False).data)
        self._spans["starts"].update(spans.starts.astype("<i4", copy=False).data)
        self._spans["ends"].update(spans.ends.astype("<i4", copy=False).data)
