"""Logits of a whole model for given tokens, for a look at what it has learned."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.data.microbatch import PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.attention_context import AttentionContext
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.models.key_value_cache import KeyValueCache
from dynapipe_hpc.models.linear_cross_entropy import keeping_logits
from dynapipe_hpc.models.slice_documents import SliceDocuments
from dynapipe_hpc.models.tokens.documents import Documents
from dynapipe_hpc.models.tokens.iteration_tokens import IntegerArray, IterationTokens


class _OneSample:
    """Reader of a single sample."""

    def __init__(self, start: int, inputs: Sequence[int], targets: Sequence[int]) -> None:
        self._start = start
        self._inputs, self._targets = np.array(inputs, np.int64), np.array(targets, np.int64)

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[IntegerArray, IntegerArray]:
        del sample_id
        return self._inputs[:input_tokens], self._targets[:target_tokens]

    def first_token(self, sample_id: int) -> int:
        del sample_id
        return self._start


def logits_of(
    stage: StageOfFamily,
    tokens: Sequence[int],
    source: Sequence[int] | None = None,
    kv_cache: KeyValueCache | None = None,
) -> Tensor:
    """Logits after each token, shape (tokens, vocabulary).

    Args:
        stage: The whole model, on one stage and one shard.
        tokens: Ids of a decoder's row, the start token included; at least one.
        source: Ids that an encoder reads; None for a model without one.
        kv_cache: Tokens before these, of a model without an encoder, to which these are added;
            None if there are none and none will follow.
    """
    start, *rest = tokens
    if source is None:
        inputs, targets = rest, [start]  # the last one is not read
        microbatch = PaddedRows((0,), len(tokens))
    else:
        inputs, targets = list(source), [*rest, start]
        microbatch = PaddedRows((0,), max(1, len(source)), target_tokens=len(tokens))
    sample = Sample(0, len(inputs), len(targets))
    read = IterationTokens({0: sample}, {0: 1.0}, _OneSample(start, inputs, targets), start)
    batch = stage.collate(microbatch, read)
    if kv_cache is not None:
        row = Documents.between((0, len(tokens)), len(tokens))
        part = SliceDocuments.from_documents(row, kv_cache.n_tokens)
        batch = replace(batch, context=AttentionContext(row, part, kv_cache))
    with torch.no_grad(), keeping_logits() as kept:
        stage.run(None, batch, Recompute.NONE)
    if kv_cache is not None:
        kv_cache.n_tokens += len(tokens)
    return kept[0].reshape(len(tokens), -1)
