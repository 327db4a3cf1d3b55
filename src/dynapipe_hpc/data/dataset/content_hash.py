"""Checksum of samples, independent of the files they are in."""

import hashlib

from dynapipe_hpc.data.token_block import TokenBlock, TokenSequences


class ContentHash:
    """SHA-256 over tokens, lengths and tasks of samples, in their order.

    It does not depend on how the samples are cut into blocks or files, nor on the numbers of the
    tasks: datasets with the same samples have the same hash.
    """

    def __init__(self) -> None:
        """Starts without samples."""
        # One per array, because every block adds to all of them.
        self._arrays = {
            f"{group}/{array}": hashlib.sha256()
            for group in ("inputs", "targets")
            for array in ("tokens", "lengths")
        }
        self._tasks = hashlib.sha256()

    def add(self, block: TokenBlock) -> None:
        """Adds samples after those already added."""
        self._add_sequences("inputs", block.inputs)
        self._add_sequences("targets", block.targets)
        # The length before each name keeps one name from reading as two.
        self._tasks.update("".join(f"{len(task)} {task}" for task in block.tasks).encode())

    def hexdigest(self) -> str:
        """The hash of all samples added so far, 64 hexadecimal digits."""
        digests = [*self._arrays.values(), self._tasks]
        return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()

    def _add_sequences(self, group: str, sequences: TokenSequences) -> None:
        tokens = sequences.tokens.astype(sequences.tokens.dtype.newbyteorder("<"), copy=False)
        self._arrays[f"{group}/tokens"].update(tokens.data)
        self._arrays[f"{group}/lengths"].update(sequences.lengths.astype("<i8", copy=False).data)
