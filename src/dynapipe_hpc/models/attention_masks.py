"""Attention masks of encoder-decoder models: over rows, or over documents of packed rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dynapipe_hpc.models.attention import attention, attention_in_groups
from dynapipe_hpc.models.relative_bias import RelativeBias
from dynapipe_hpc.models.tokens.collate import PairBatch
from dynapipe_hpc.models.tokens.documents import LengthGroups


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMasks:
    """Masks of one side's positions over the same or the other side.

    Attributes:
        biases: Numbers added to scores, (rows or 1, heads or 1, tokens or 1, source tokens), minus
            infinity where nothing may be seen; one tensor for whole rows, or one for each group of
            documents. None adds nothing.
        groups: Documents of packed rows; None if attention is over whole rows.
    """

    biases: Sequence[Tensor | None]
    groups: LengthGroups | None

    @classmethod
    def from_inputs(cls, batch: PairBatch, bias: RelativeBias, dtype: torch.dtype) -> Self:
        """Masks of inputs over inputs: all but padding."""
        if batch.documents is None:
            return cls([bias(batch.inputs.shape[1], batch.padding_mask(dtype))], None)
        groups = batch.documents.inputs.length_groups
        masks = zip(groups.sizes, groups.padding_masks(dtype), strict=True)
        return cls([bias(size.tokens, padding) for size, padding in masks], groups)

    @classmethod
    def from_targets(cls, batch: PairBatch, bias: RelativeBias) -> Self:
        """Masks of targets over targets: those before them, so that padding behind is hidden."""
        if batch.documents is None:
            return cls([bias(batch.tokens.tokens.shape[1])], None)
        groups = batch.documents.targets.length_groups
        return cls([bias(size.tokens) for size in groups.sizes], groups)

    @classmethod
    def from_pairs(cls, batch: PairBatch, dtype: torch.dtype) -> Self:
        """Masks of targets over inputs: all but padding."""
        if batch.documents is None:
            return cls([batch.padding_mask(dtype)], None)
        groups = batch.documents.crossed
        return cls(groups.padding_masks(dtype), groups)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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
