"""Attention in packed rows of preference pairs, whose rejected answers branch off their prompts."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.cached_attention import tail_attention
from dynapipe_hpc.models.tokens.documents import Documents
from dynapipe_hpc.models.tokens.to_device import to_device


@dataclass(frozen=True, eq=False)
class Branches:
    """Prompts with their chosen answers, and rejected answers as branches of the same prompts.

    The prompt of a pair is there once. A rejected answer attends to it and to itself, at the
    positions that it has in a copy of its own behind the prompt.

    Attributes:
        trunk: Documents of prompts with chosen answers, and of what fills the row up.
        answers: Rejected answers as documents.
        sources: What they attend to as documents: each with the prompt before it.
        trunk_tokens: Position in the row of every token of `trunk`, int64.
        answer_tokens: The same of `answers`.
        source_tokens: The same of `sources`.
        places: Place of every token of the row among those of `trunk`, then of `answers`, int64.
        positions: Position of every token in its text, shape (row_tokens,), int64.
    """

    trunk: Documents
    answers: Documents
    sources: Documents
    trunk_tokens: Tensor
    answer_tokens: Tensor
    source_tokens: Tensor
    places: Tensor
    positions: Tensor

    @classmethod
    def from_microbatch(cls, microbatch: PackedRow) -> Self:
        """The branches of a row of preference pairs, on the host."""
        spans = list(pairwise(microbatch.offsets))
        parts = list(zip(spans, microbatch.branches, strict=True))
        end, row_tokens = microbatch.offsets[-1], microbatch.row_tokens
        trunk_lengths = [branch.begin - begin for (begin, _), branch in parts]
        offsets = tuple(accumulate(trunk_lengths, initial=0))
        trunk = Documents.between(offsets, offsets[-1] + row_tokens - end)
        trunk_tokens = _joined(
            [*(range(begin, branch.begin) for (begin, _), branch in parts), range(end, row_tokens)]
        )
        answer_tokens = _joined([range(branch.begin, end) for (_, end), branch in parts])
        source_tokens = _joined(
            [
                tokens
                for (begin, end), branch in parts
                for tokens in (
                    range(begin, begin + branch.prompt_tokens),
                    range(branch.begin, end),
                )
            ]
        )
        answers = [end - branch.begin for (_, end), branch in parts]
        prompts = [branch.prompt_tokens for branch in microbatch.branches]
        after_prompts = _joined([range(p, p + n) for p, n in zip(prompts, answers, strict=True)])
        places = torch.argsort(torch.cat([trunk_tokens, answer_tokens]))
        return cls(
            trunk,
            Documents.from_lengths(answers),
            Documents.from_lengths([p + n for p, n in zip(prompts, answers, strict=True)]),
            trunk_tokens,
            answer_tokens,
            source_tokens,
            places,
            torch.cat([trunk.positions, after_prompts])[places],
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Mixed values of all tokens, of the shape of `query`.

        Args:
            query: What attends, shape (1, tokens, heads, head size).
            key: What is attended to, shape (1, tokens, key heads, head size).
            value: What is weighted, of the shape of `key`.
        """
        q, k, v = (
            each.index_select(1, self.trunk_tokens).transpose(1, 2) for each in (query, key, value)
        )
        trunk = causal_attention(q, k, v, self.trunk).transpose(1, 2)
        answers = tail_attention(
            query[0].index_select(0, self.answer_tokens),
            key[0].index_select(0, self.source_tokens),
            value[0].index_select(0, self.source_tokens),
            queries=self.answers,
            keys=self.sources,
        )
        return torch.cat([trunk, answers[None]], 1).index_select(1, self.places)

    def to(self, device: torch.device) -> Self:
        """The same on a device, or itself."""
        if self.places.device == device:
            return self
        return type(self)(
            self.trunk.to(device),
            self.answers.to(device),
            self.sources.to(device),
            to_device(self.trunk_tokens, device),
            to_device(self.answer_tokens, device),
            to_device(self.source_tokens, device),
            to_device(self.places, device),
            to_device(self.positions, device),
        )


def _joined(ranges: list[range]) -> Tensor:
    """The numbers of all ranges, int64."""
    return torch.from_numpy(np.concatenate([np.arange(r.start, r.stop) for r in ranges]))
