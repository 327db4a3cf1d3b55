"""Documents of a packed row: where each begins, on the host and on the device that computes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Self

import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import MAX_FILL_TOKENS, MicroBatch, PackedRow
from dynapipe_hpc.models.tokens.length_groups import LengthGroups
from dynapipe_hpc.models.tokens.to_device import to_device


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents of a packed row: its samples end to end, and behind them what fills it up.

    Attributes:
        offsets: Position at which each begins, and the end of the last, which is the row's.
        cu_seqlens: The same on a device, int32, shape (documents + 1,).
    """

    offsets: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def from_microbatch(cls, microbatch: MicroBatch) -> Self | None:
        """The documents of a packed micro-batch, on the host; None in other layouts."""
        if not isinstance(microbatch, PackedRow):
            return None
        return cls.between(microbatch.offsets, microbatch.row_tokens)

    @classmethod
    def between(cls, offsets: tuple[int, ...], row_tokens: int) -> Self:
        """The documents between offsets, and what fills their row up, on the host."""
        fill = range(offsets[-1], row_tokens, MAX_FILL_TOKENS)
        return cls.from_offsets((*offsets[:-1], *fill, row_tokens))

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> Self:
        """Documents of given lengths that fill their row, on the host."""
        return cls.from_offsets(tuple(accumulate(lengths, initial=0)))

    @classmethod
    def from_offsets(cls, offsets: tuple[int, ...]) -> Self:
        """The documents between offsets, on the host."""
        return cls(offsets, torch.tensor(offsets, dtype=torch.int32))

    @property
    def lengths(self) -> list[int]:
        """Length of each in tokens."""
        return [end - start for start, end in pairwise(self.offsets)]

    @cached_property
    def longest(self) -> int:
        """Length of the longest in tokens."""
        return max(self.lengths)

    @cached_property
    def positions(self) -> Tensor:
        """Position of every token in its document, shape (row_tokens,)."""
        n_tokens, starts = self.offsets[-1], self.cu_seqlens[:-1]
        # With the size given, the host need not wait for the device.
        first = starts.repeat_interleave(self.cu_seqlens.diff(), output_size=n_tokens)
        return torch.arange(n_tokens, device=first.device) - first

    @cached_property
    def length_groups(self) -> LengthGroups:
        """The documents as rows of like length, for kernels that need rows."""
        return LengthGroups.from_offsets(self.offsets, self.cu_seqlens.device)

    def to(self, device: torch.device) -> Self:
        """The same on a device, or itself."""
        if self.cu_seqlens.device == device:
            return self
        return replace(self, cu_seqlens=to_device(self.cu_seqlens, device))


@dataclass(frozen=True, eq=False)
class PairDocuments:
    """Documents of a packed micro-batch of an encoder-decoder model.

    Attributes:
        inputs: Documents of the encoder's row.
        targets: Documents of the decoder's row, in the same order.
    """

    inputs: Documents
    targets: Documents

    @classmethod
    def from_microbatch(cls, microbatch: MicroBatch) -> Self | None:
        """The documents of a packed micro-batch, on the host; None in other layouts."""
        if not isinstance(microbatch, PackedRow):
            return None
        return cls(
            Documents.between(microbatch.offsets, microbatch.row_tokens),
            Documents.between(microbatch.target_offsets, microbatch.target_tokens),
        )

    @cached_property
    def crossed(self) -> LengthGroups:
        """Targets as rows of like length that attend to inputs of like length.

        What fills the decoder's row attends to what fills the encoder's or, if nothing is left of
        that, to the shortest input; its loss has no weight, so neither has what it does there.
        """
        device = self.targets.cu_seqlens.device
        return LengthGroups.from_offsets(self.targets.offsets, device, self.inputs.offsets)

    def to(self, device: torch.device) -> Self:
        """The same on a device, or itself."""
        if self.inputs.cu_seqlens.device == device:
            return self
        return type(self)(self.inputs.to(device), self.targets.to(device))


def check_offsets(
    sample_ids: Sequence[int], n_tokens: Sequence[int], offsets: Sequence[int], kind: str = "tokens"
) -> None:
    """Checks that the samples of a packed row are as long as its offsets say.

    Args:
        sample_ids: The samples, in order.
        n_tokens: Number of tokens of each.
        offsets: Beginnings of the samples in the row, and the end of the last.
        kind: Name of what the row holds.

    Raises:
        ValueError: A sample is longer or shorter.
    """
    for sample_id, n, (start, end) in zip(sample_ids, n_tokens, pairwise(offsets), strict=True):
        if n != end - start:
            raise ValueError(
                f"sample {sample_id} has {n} {kind}, but offsets {start} and {end} of a "
                "packed row around it; the plan was made for other samples"
            )
