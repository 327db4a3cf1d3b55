"""Documents of a packed row: where each begins, on the host and on the device that computes."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.models.like_lengths import LikeLengths
from dynapipe_hpc.models.tokens.to_device import to_device


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents of a packed row: its samples end to end, and as one more what fills it up.

    Attributes:
        offsets: Position at which each begins, and the end of the last, which is the row's.
        cu_seqlens: The same on a device, int32, shape (documents + 1,).
    """

    offsets: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def of(cls, microbatch: MicroBatch) -> Self | None:
        """The documents of a packed micro-batch, on the host; None in other layouts."""
        if microbatch.layout is not Layout.PACKED:
            return None
        offsets = microbatch.offsets
        if offsets[-1] < microbatch.row_tokens:
            offsets = (*offsets, microbatch.row_tokens)
        return cls(offsets, torch.tensor(offsets, dtype=torch.int32))

    @cached_property
    def longest(self) -> int:
        """Length of the longest in tokens."""
        return max(end - start for start, end in pairwise(self.offsets))

    @cached_property
    def positions(self) -> Tensor:
        """Position of every token in its document, shape (row_tokens,)."""
        n_tokens, starts = self.offsets[-1], self.cu_seqlens[:-1]
        # With the size given, the host need not wait for the device.
        first = starts.repeat_interleave(self.cu_seqlens.diff(), output_size=n_tokens)
        return torch.arange(n_tokens, device=first.device) - first

    @cached_property
    def like_lengths(self) -> LikeLengths:
        """The documents as rows of like length, for kernels that need rows."""
        return LikeLengths.of(self.offsets, self.cu_seqlens.device)

    def to(self, device: torch.device) -> Self:
        """The same on a device, or itself."""
        if self.cu_seqlens.device == device:
            return self
        return replace(self, cu_seqlens=to_device(self.cu_seqlens, device))
