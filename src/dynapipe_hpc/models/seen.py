"""What positions of an encoder-decoder model see: their row, or their document of a packed row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dynapipe_hpc.models.attention import attention, attention_in_groups
from dynapipe_hpc.models.like_lengths import LikeLengths
from dynapipe_hpc.models.relative_bias import RelativeBias
from dynapipe_hpc.models.tokens.collate_pairs import PairBatch


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the positions of one side see of the same or the other side.

    Attributes:
        biases: Numbers added to scores, (rows or 1, heads or 1, tokens or 1, source tokens), minus
            infinity where nothing may be seen; one tensor for whole rows, or one for each group of
            documents. None adds nothing.
        groups: Documents of packed rows; None if attention is over whole rows.
    """

    biases: Sequence[Tensor | None]
    groups: LikeLengths | None

    @classmethod
    def by_inputs(cls, batch: PairBatch, bias: RelativeBias, dtype: torch.dtype) -> Self:
        """What inputs see of inputs: all but padding."""
        if batch.documents is None:
            return cls([bias(batch.inputs.shape[1], batch.padding_mask(dtype))], None)
        groups = batch.documents.inputs.like_lengths
        masks = zip(groups.sizes, groups.padding_masks(dtype), strict=True)
        return cls([bias(size.tokens, padding) for size, padding in masks], groups)

    @classmethod
    def by_targets(cls, batch: PairBatch, bias: RelativeBias) -> Self:
        """What targets see of targets: those before them, so that padding behind is not seen."""
        if batch.documents is None:
            return cls([bias(batch.tokens.tokens.shape[1])], None)
        groups = batch.documents.targets.like_lengths
        return cls([bias(size.tokens) for size in groups.sizes], groups)

    @classmethod
    def across(cls, batch: PairBatch, dtype: torch.dtype) -> Self:
        """What targets see of inputs: all but padding."""
        if batch.documents is None:
            return cls([batch.padding_mask(dtype)], None)
        groups = batch.documents.crossed
        return cls(groups.padding_masks(dtype), groups)

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention to what is seen, of the shape of `query`; scores are not scaled.

        Args:
            query: What attends, shape (rows, heads, tokens, head size).
            key: What is attended to, shape (rows, heads, source tokens, head size).
            value: What is weighted, of the shape of `key`.
        """
        if self.groups is None:
            (bias,) = self.biases
            return attention(query, key, value, bias=bias, scale=1.0)
        return attention_in_groups(query, key, value, self.groups, biases=self.biases, scale=1.0)
