"""Reader of datasets. `docs/formats.md` describes the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py
import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.dataset.dataset_header import read_header, strings
from dynapipe_hpc.data.dataset.open_dataset import AGAIN, array_of, open_dataset
from dynapipe_hpc.data.dataset.shard_reader import (
    GROUPS,
    REJECTED,
    OwnTokens,
    ShardError,
    ShardReader,
    offsets_of,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Spans
from dynapipe_hpc.data.stored_array import holds
from dynapipe_hpc.data.stored_attributes import StoredAttributes
from dynapipe_hpc.data.token_block import TokenArray, TokenBlock, TokenSequences

Lengths = npt.NDArray[np.int64]


def spans_of(file: h5py.File, n_samples: int) -> Spans:
    """Spans of all samples of a dataset."""
    offsets = offsets_of(file, "spans")
    starts, ends = (array_of(file, f"spans/{name}", "i")[:] for name in ("starts", "ends"))
    if len(offsets) != n_samples + 1:
        raise InputError(
            f"'spans/offsets' holds {len(offsets)} numbers, but {n_samples} samples need "
            f"{n_samples + 1}"
        )
    if not offsets[-1] == len(starts) == len(ends):
        raise InputError(
            f"'spans/offsets' ends at {offsets[-1]}, but there are {len(starts)} 'spans/starts' "
            f"and {len(ends)} 'spans/ends'"
        )
    return Spans(offsets, starts, ends) if len(starts) else Spans.none(n_samples)


def check_spans(spans: Spans, first_target: Lengths, n_tokens: Lengths) -> None:
    """Checks that spans are within their samples, in order, and that one has a target's start.

    However a sample is cut, it keeps the first token of its target, so something is trained.

    Args:
        spans: The spans.
        first_target: Position of the first token to predict of every target.
        n_tokens: Number of tokens of every sample.
    """
    if not len(spans.starts):
        return
    owners = np.repeat(np.arange(len(n_tokens)), spans.lengths)
    is_wrong = (spans.starts < 0) | (spans.starts >= spans.ends)
    is_wrong |= spans.ends > n_tokens[owners]
    is_wrong[1:] |= (owners[1:] == owners[:-1]) & (spans.starts[1:] < spans.ends[:-1])
    if is_wrong.any():
        worst = int(is_wrong.argmax())
        raise InputError(
            f"sample {owners[worst]} has the span {spans.starts[worst]} to {spans.ends[worst]}, "
            "which is empty, beyond its tokens, or before the end of the previous span"
        )
    first = first_target[owners]
    has_start = (spans.starts <= first) & (first < spans.ends)
    n_with_start = np.bincount(owners[has_start], minlength=len(n_tokens))
    if (lacking := (spans.lengths > 0) & (n_with_start == 0)).any():
        raise InputError(
            f"sample {lacking.argmax()} has spans, but none has the first token of its target"
        )


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """Consecutive samples whose tokens are in one file.

    Attributes:
        path: The file.
        first: Id of the first sample.
        end: Id after that of the last sample.
        content_sha256: Recorded `ContentHash` of the samples; empty if none was recorded.
    """

    path: Path
    first: int
    end: int
    content_sha256: str


class DatasetFile:
    """A dataset open for reading, by any number of processes at once.

    Offsets are in memory, 16 bytes per sample, and spans, 8 bytes each, with 8 more per sample if
    there are any. Tokens are read when asked for, from the file or,
    if it is an index, from its shards.

    Attributes:
        path: The file, or the index.
        header: Tokenizer, sources and time of creation.
        task_ids: Task id of every sample, shape (n_samples,).
        task_names: Task names by id.
        spans: Spans of trained tokens of every sample.
    """

    def __init__(self, path: Path) -> None:
        """Opens and checks a dataset."""
        self.path = path
        self._file = open_dataset(path)
        try:
            self.header = read_header(StoredAttributes(self._file))
            groups = (*GROUPS, REJECTED) if self.header.has_pairs else GROUPS
            self._offsets = {group: offsets_of(self._file, group) for group in groups}
            self.task_ids: npt.NDArray[np.int32] = array_of(self._file, "task_ids", "i")[:]
            self.task_names = strings(array_of(self._file, "task_names", "S")[:])
            self._check_tasks_and_targets()
            self._check_pairs()
            self._begins = self._begins_of_predicted()
            self.spans = spans_of(self._file, self.n_samples)
            first_target = self.stored_lengths("inputs") + self._n_read_only("targets")
            n_tokens = self.stored_lengths("inputs") + self.stored_lengths("targets")
            check_spans(self.spans, first_target, n_tokens)
            self._tokens = self._load_tokens()
        except ShardError:
            self._file.close()
            raise
        except (ValueError, TypeError, OSError, KeyError, RuntimeError) as error:
            self._file.close()
            raise InputError(f"{path}: damaged dataset: {error}; {AGAIN}") from None

    def __enter__(self) -> Self:
        """Keeps the file open until the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the file."""
        self.close()

    def close(self) -> None:
        """Closes the file; lengths and tasks stay usable."""
        self._tokens.close()
        self._file.close()

    @property
    def files(self) -> tuple[Self, ...]:
        """The dataset, as the only one of those that are read as one."""
        return (self,)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.task_ids)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.header.vocab_size

    @property
    def eos_id(self) -> int:
        """Id of the token that ends every target."""
        return self.header.eos_id

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end what is trained: turns of conversations, or all targets."""
        return self.header.end_ids

    @property
    def start_id(self) -> int | None:
        """Id of the token that is read before every sample; None if that is its first token.

        Then the first token of a sample does not count in lengths, and is not read with the others:
        a sample of n tokens is one of n - 1 with a start token of its own.
        """
        return self.header.start_id

    @property
    def input_lengths(self) -> npt.NDArray[np.int64]:
        """Number of input tokens of every sample, shape (n_samples,)."""
        return self._offsets["inputs"][1:] - self._begins["inputs"]

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Number of target tokens of every sample, >= 1, shape (n_samples,)."""
        return self._offsets["targets"][1:] - self._begins["targets"]

    @property
    def has_pairs(self) -> bool:
        """Whether the samples are preference pairs, whose target is the chosen answer."""
        return self.header.has_pairs

    @property
    def rejected_lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of every rejected answer, 0 where there is none, shape (n_samples,)."""
        if not self.has_pairs:
            return np.zeros(self.n_samples, np.int64)
        return self.stored_lengths(REJECTED)

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all samples that count in lengths."""
        return int((self.input_lengths + self.target_lengths + self.rejected_lengths).sum())

    @property
    def predicted_spans(self) -> Spans:
        """Spans of trained tokens, at positions among the tokens that count in lengths."""
        return self.spans.without_first_tokens() if self.start_id is None else self.spans

    def stored_lengths(self, group: str) -> npt.NDArray[np.int64]:
        """Number of tokens of every input or target in the file, the first token included."""
        return np.diff(self._offsets[group])

    def first_token(self, sample_id: int) -> int:
        """The first token of a sample, input or target."""
        first, end = self._offsets["inputs"][sample_id : sample_id + 2].tolist()
        group = "inputs" if first < end else "targets"
        start = int(self._offsets[group][sample_id])
        return int(self._checked(group, sample_id, start, start + 1)[0])

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[TokenArray, TokenArray]:
        """Reads the first tokens of a sample's input and target.

        Args:
            sample_id: Id of the sample.
            input_tokens: Number of input tokens to read, at most the input's length.
            target_tokens: Number of target tokens to read, at most the target's length.

        Returns:
            Input, shape (input_tokens,), and target, shape (target_tokens,).
        """
        return (
            self._read("inputs", sample_id, input_tokens),
            self._read("targets", sample_id, target_tokens),
        )

    def read_rejected(self, sample_id: int, n_tokens: int) -> TokenArray:
        """Reads the first tokens of the rejected answer of a preference pair, shape (n_tokens,)."""
        return self._read(REJECTED, sample_id, n_tokens)

    @property
    def parts(self) -> list[DatasetPart]:
        """The files that hold the tokens, in the order of the samples."""
        if not isinstance(self._tokens, ShardReader):
            return [DatasetPart(self.path, 0, self.n_samples, self.header.content_sha256)]
        shards, starts = self._tokens, self._tokens.starts.tolist()
        return [
            DatasetPart(self.path.parent / name, first, end, sha256)
            for name, first, end, sha256 in zip(
                shards.names, starts, starts[1:], shards.sha256, strict=False
            )
        ]

    def blocks(self, part: DatasetPart, n_samples: int) -> Iterator[TokenBlock]:
        """All samples of a part, uncut, `n_samples` at a time."""
        for first in range(part.first, part.end, n_samples):
            end = min(first + n_samples, part.end)
            inputs, targets = (self._sequences(group, first, end) for group in GROUPS)
            rejected = self._sequences(REJECTED, first, end) if self.has_pairs else None
            tasks = tuple(self.task_names[i] for i in self.task_ids[first:end])
            spans = self.spans.between(first, end)
            yield TokenBlock(inputs, targets, tasks, spans, rejected=rejected)

    def _sequences(self, group: str, first: int, end: int) -> TokenSequences:
        offsets = self._offsets[group][first : end + 1]
        tokens = self._tokens_between(group, first, int(offsets[0]), int(offsets[-1]))
        return TokenSequences(tokens, np.diff(offsets))

    def _read(self, group: str, sample_id: int, n_tokens: int) -> TokenArray:
        start, end = int(self._begins[group][sample_id]), int(self._offsets[group][sample_id + 1])
        if not 0 <= n_tokens <= end - start:
            raise ValueError(f"sequence {sample_id} has {end - start} tokens, not {n_tokens}")
        return self._checked(group, sample_id, start, start + n_tokens)

    def _checked(self, group: str, sample_id: int, start: int, end: int) -> TokenArray:
        tokens = self._tokens_between(group, sample_id, start, end)
        # A device would stop at such a token without saying where it is.
        if len(tokens) and tokens.max() >= self.vocab_size:
            raise InputError(
                f"{self.path}: sample {sample_id} holds token {tokens.max()}, but 'vocab_size' is "
                f"{self.vocab_size}; {AGAIN}"
            )
        return tokens

    def _tokens_between(self, group: str, sample_id: int, start: int, end: int) -> TokenArray:
        try:
            return self._tokens.read(group, sample_id, start, end)
        except (OSError, RuntimeError) as error:
            raise InputError(f"{self.path}: cannot read sample {sample_id}: {error}") from None

    def _load_tokens(self) -> OwnTokens | ShardReader:
        if holds(self._file, "shards"):
            return ShardReader.load(self.path, self._file, self._offsets)
        n_tokens = {group: int(offsets[-1]) for group, offsets in self._offsets.items()}
        return OwnTokens.load(self._file, n_tokens)

    def _n_read_only(self, group: str) -> npt.NDArray[np.bool_]:
        """Whether the first token of every input or target is only read."""
        has_input = self.stored_lengths("inputs") > 0
        is_first = {"inputs": has_input, "targets": ~has_input}.get(group, np.zeros_like(has_input))
        return is_first & (self.start_id is None)

    def _begins_of_predicted(self) -> dict[str, npt.NDArray[np.int64]]:
        """Offsets of the first token to predict of every input and target."""
        if self.start_id is not None:
            return {group: offsets[:-1] for group, offsets in self._offsets.items()}
        begins = {group: at[:-1] + self._n_read_only(group) for group, at in self._offsets.items()}
        if (is_empty := begins["targets"] == self._offsets["targets"][1:]).any():
            raise InputError(
                f"sample {is_empty.argmax()} has one token and no start token, so that there is "
                "nothing to predict"
            )
        return begins

    def _check_pairs(self) -> None:
        if not self.has_pairs or not self.n_samples:
            return
        if (lengths := self.rejected_lengths).min() < 1:
            raise InputError(f"sample {lengths.argmin()} has an empty rejected answer")
        if self.start_id is None and (inputs := self.stored_lengths("inputs")).min() < 1:
            raise InputError(
                f"sample {inputs.argmin()} is a preference pair with an empty prompt and no start "
                "token, so that nothing predicts the first token of its answers"
            )

    def _check_tasks_and_targets(self) -> None:
        n_samples = len(self.task_ids)
        for group, offsets in self._offsets.items():
            if len(offsets) != n_samples + 1:
                raise InputError(
                    f"'{group}/offsets' holds {len(offsets)} numbers, but 'task_ids' "
                    f"has {n_samples} samples, which need {n_samples + 1}"
                )
        if n_samples and not 0 <= self.task_ids.min() <= self.task_ids.max() < len(self.task_names):
            raise InputError(f"'task_ids' points past the {len(self.task_names)} 'task_names'")
        targets = self.stored_lengths("targets")
        if n_samples and targets.min() < 1:
            raise InputError(f"sample {targets.argmin()} has an empty target")
