"""Documents of a packed row whose first is a slice of a sample."""

from dataclasses import dataclass, field
from typing import Self

import torch

from dynapipe_hpc.models.flash_attention import FlashSizes
from dynapipe_hpc.models.tokens.documents import Documents


@dataclass(frozen=True, eq=False)
class SliceDocuments:
    """A slice of a sample, and the documents behind it in its row.

    Attributes:
        begin: Number of the sample's tokens before the slice.
        queries: The slice as a document.
        others: The documents behind it; None if there are none.
    """

    begin: int
    queries: Documents
    others: Documents | None
    _sizes: dict[int | None, FlashSizes] = field(default_factory=dict, init=False)

    @classmethod
    def from_documents(cls, documents: Documents, begin: int) -> Self:
        """The slice that begins at a token of its sample, and what is behind it in its row."""
        n_tokens, *ends = documents.offsets[1:]
        others = tuple(end - n_tokens for end in (n_tokens, *ends))
        return cls(
            begin,
            Documents.from_lengths([n_tokens]),
            Documents.from_offsets(others) if ends else None,
        )

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the slice."""
        return self.queries.longest

    @property
    def end(self) -> int:
        """Number of the sample's tokens up to the end of the slice."""
        return self.begin + self.n_tokens

    def first_key(self, window: int | None) -> int:
        """The first token that the slice attends to, if a query sees so many keys at most."""
        return 0 if window is None else max(0, self.begin - window + 1)

    def sizes(self, window: int | None) -> FlashSizes:
        """Sizes of attention to the tokens from `first_key` on, made once for all layers."""
        if window not in self._sizes:
            n_keys = self.end - self.first_key(window)
            keys = Documents.from_lengths([n_keys]).to(self.queries.cu_seqlens.device)
            self._sizes[window] = FlashSizes.from_documents(self.queries, keys, window)
        return self._sizes[window]

    def to(self, device: torch.device) -> Self:
        """A copy on `device`; itself if it is there."""
        if self.queries.cu_seqlens.device == device:
            return self
        others = self.others and self.others.to(device)
        return type(self)(self.begin, self.queries.to(device), others)
