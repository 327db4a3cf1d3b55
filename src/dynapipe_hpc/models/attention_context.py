"""Context of the attention of decoder-only models: all that keys and values pass through."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow
from dynapipe_hpc.models.attention import causal_attention, scaled, visible_bias
from dynapipe_hpc.models.documents import Documents, OnDevice
from dynapipe_hpc.models.flash_attention import FlashSizes, flash_backward, flash_forward
from dynapipe_hpc.models.key_value_cache import KeyValueCache, LayerCache
from dynapipe_hpc.models.rotary import Angles


@dataclass(frozen=True, eq=False)
class SliceDocuments(OnDevice):
    """A slice of a sample, and the documents behind it in its row.

    `others`: The documents behind it; None if there are none.
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


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cache: LayerCache,
    part: SliceDocuments,
    window: int | None = None,
) -> Tensor:
    """Causal attention of (tokens, heads, head size) to a cache, to which keys are added.

    The gradients of keys and values are complete if passes over all later tokens have gone back
    before: so backward passes run in descending order.
    """
    attended: Tensor = _CachedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, cache, part, window
    )
    return attended


class _CachedAttention(torch.autograd.Function):
    """The kernels for both directions. The cache is not saved: later tokens are written to it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        part: SliceDocuments,
        window: int | None,
    ) -> Tensor:
        first = part.first_key(window)
        keys, values = (each[first:] for each in cache.write(part.begin, key, value))
        if query.is_cuda:
            attended, *left = flash_forward(query, keys, values, part.sizes(window))
        else:
            attended, *left = attention_on_cpu(query, keys, values, window)
        ctx.cache, ctx.part, ctx.window = cache, part, window
        ctx.save_for_backward(query, attended, *left)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, *left = ctx.saved_tensors
        part: SliceDocuments = ctx.part
        first = part.first_key(ctx.window)
        inputs = query, *(each[first:] for each in ctx.cache.read(part.end))
        if query.is_cuda:
            grad_query, *grad_sources = flash_backward(
                gradient, inputs, left, part.sizes(ctx.window)
            )
        else:
            grad_query, *grad_sources = gradients_on_cpu(gradient, inputs, left, ctx.window)
        sums = ctx.cache.sum_gradients(part.begin, grad_sources, first)
        return grad_query, *sums, None, None, None


def attention_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """The forward pass by torch's flash attention for CPUs: attended values, and sums of scores.

    Its causal attention is for as many keys as queries, so earlier keys are a call of their own:
    each query sees all of them. What the two mix is weighted by the exponentials of their scores.
    Where a window keeps some keys from some queries, there is one call, with a mask.
    """
    parts = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *_rows(query, *sources), **options
        )
        for *sources, options in _calls(query, keys, values, window)
    ]
    attended, scores = parts[0]
    for earlier, of_earlier in parts[1:]:
        total = torch.logaddexp(scores, of_earlier)
        weight, of_earlier_weight = (
            (each - total).exp().unsqueeze(3).to(attended.dtype) for each in (scores, of_earlier)
        )
        attended, scores = weight * attended + of_earlier_weight * earlier, total
    return attended[0].transpose(0, 1), scores


def gradients_on_cpu(
    gradient: Tensor,
    inputs: Sequence[Tensor],
    left: Sequence[Tensor],
    window: int | None = None,
) -> list[Tensor]:
    """The backward pass: gradients of queries, keys and values.

    Of what a call attended, the kernel needs only what all of them attended together.
    """
    query, keys, values = inputs
    attended, scores = left
    grad_output, out = (each.transpose(0, 1)[None] for each in (gradient, attended))
    calls = [
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, *_rows(query, *each), out, scores, 0.0, **{"is_causal": False, **options}
        )
        for *each, options in _calls(query, keys, values, window)
    ]
    grad_queries, *grad_sources = zip(*calls, strict=True)
    gradients = [sum(grad_queries), *(torch.cat(each[::-1], 2) for each in grad_sources)]
    # Heads that share keys and values add up what they do to them.
    return [
        each[0].transpose(0, 1).unflatten(1, (of_input.shape[1], -1)).sum(2)
        for of_input, each in zip(inputs, gradients, strict=True)
    ]


def _calls(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> Iterator[tuple[Tensor, Tensor, Mapping[str, Any]]]:
    """Keys and values of the queries' own tokens, then of those before, each with what is seen.

    Where a window hides some keys, all keys come in one call, with a mask.
    """
    if window is not None and window < len(keys):
        yield keys, values, {"attn_mask": visible_bias(len(query), len(keys), window, query)}
        return
    begin = len(keys) - len(query)
    yield keys[begin:], values[begin:], {"is_causal": True}
    if begin:
        yield keys[:begin], values[:begin], {"is_causal": False}


def _rows(query: Tensor, keys: Tensor, values: Tensor) -> Iterator[Tensor]:
    """Each as a row with the heads of queries, shape (1, heads, tokens, head size)."""
    for each in (query, keys, values):
        n_shared = query.shape[1] // each.shape[1]
        heads = each if n_shared == 1 else each.repeat_interleave(n_shared, 1)
        yield heads.transpose(0, 1)[None]


@dataclass(frozen=True, eq=False)
class Branches(OnDevice):
    """Texts of a packed row of preference pairs, in which the prompt of a pair is there once.

    A prompt with its chosen answer attends to itself. A rejected answer attends to the prompt and
    to itself, at the positions that it has behind a copy of the prompt.

    `texts`: Documents of the row: prompts with chosen answers, rejected answers, and fill.
    `sources`: Documents that they attend to: themselves, with the prompt before a rejected one.
    `source_tokens`: Position in the row of every token of `sources`, int64. `positions`: Position
    of every token in its text, shape (row_tokens,), int64.
    """

    texts: Documents
    sources: Documents
    source_tokens: Tensor
    positions: Tensor

    @classmethod
    def from_microbatch(cls, microbatch: PackedRow) -> Self:
        """The branches of a row of preference pairs, on the host."""
        begins = np.array(microbatch.offsets[:-1], np.int64)
        of_pairs = np.array([(b.begin, b.prompt_tokens) for b in microbatch.branches], np.int64)
        bounds = np.stack([begins, of_pairs[:, 0]], axis=1).ravel().tolist()
        texts = Documents.between((*bounds, microbatch.offsets[-1]), microbatch.row_tokens)
        starts, lengths = np.array(texts.offsets[:-1], np.int64), np.diff(texts.offsets)
        prompt_starts, n_prompt = np.zeros_like(starts), np.zeros_like(starts)
        rejected = slice(1, 2 * len(begins), 2)
        prompt_starts[rejected], n_prompt[rejected] = begins, of_pairs[:, 1]
        n_sources = n_prompt + lengths
        ends = np.cumsum(n_sources)
        places = np.arange(ends[-1]) - np.repeat(ends - n_sources, n_sources)
        before, shift, own_shift = (
            np.repeat(each, n_sources) for each in (n_prompt, prompt_starts, starts - n_prompt)
        )
        source_tokens = places + np.where(places < before, shift, own_shift)
        return cls(
            texts,
            Documents.from_lengths(n_sources.tolist()),
            torch.from_numpy(source_tokens),
            torch.from_numpy(np.arange(lengths.sum()) + np.repeat(n_prompt - starts, lengths)),
        )

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, window: int | None = None
    ) -> Tensor:
        """Attended values of all tokens, of the shape of `query`: (1, tokens, heads, head size)."""
        attended: Tensor = _BranchedAttention.apply(  # type: ignore[no-untyped-call]
            query[0], key[0], value[0], self, window
        )
        return attended[None]


class _BranchedAttention(torch.autograd.Function):
    """The kernels for both directions; keys and values of prompts are kept once."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        branches: Branches,
        window: int | None,
    ) -> Tensor:
        keys, values = sources = _sources(key, value, branches)
        if query.is_cuda:
            sizes = FlashSizes.from_documents(branches.texts, branches.sources, window)
            attended, *left = flash_forward(query, keys, values, sizes)
        else:
            split = _split(query, sources, branches)
            parts = [attention_on_cpu(q, k, v, window) for q, k, v in split]
            attended = torch.cat([part for part, _ in parts])
            left = [scores for _, scores in parts]
        ctx.branches, ctx.window = branches, window
        ctx.save_for_backward(query, key, value, attended, *left)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, attended, *left = ctx.saved_tensors
        branches: Branches = ctx.branches
        sources = _sources(key, value, branches)
        if query.is_cuda:
            sizes = FlashSizes.from_documents(branches.texts, branches.sources, ctx.window)
            grad_query, *grad_sources = flash_backward(
                gradient, (query, *sources), (attended, *left), sizes
            )
        else:
            parts = [
                gradients_on_cpu(grad_output, inputs, (out, scores), ctx.window)
                for inputs, grad_output, out, scores in zip(
                    _split(query, sources, branches),
                    torch.split(gradient, branches.texts.lengths),
                    torch.split(attended, branches.texts.lengths),
                    left,
                    strict=True,
                )
            ]
            grad_query, *grad_sources = map(torch.cat, zip(*parts, strict=True))
        # A prompt is a source of two texts at most, and sums of two terms have no order.
        grad_key, grad_value = (
            torch.zeros_like(side).index_add_(0, branches.source_tokens, of_side)
            for side, of_side in zip((key, value), grad_sources, strict=True)
        )
        return grad_query, grad_key, grad_value, None, None


def _sources(key: Tensor, value: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
    tokens = branches.source_tokens
    return key.index_select(0, tokens), value.index_select(0, tokens)


def _split(
    query: Tensor, sources: Sequence[Tensor], branches: Branches
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    keys, values = (torch.split(side, branches.sources.lengths) for side in sources)
    return zip(torch.split(query, branches.texts.lengths), keys, values, strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionContext(OnDevice):
    """Documents, cache and angles of a micro-batch's attention, in all layers of a stage.

    `documents`: Documents of a packed row, which attend to themselves only; None for attention over
    whole rows. `slice`: Slice of a sample that is the row's first document; None if that is a whole
    one. `angles`: Angles of rotary positions; None where embeddings tell positions. `layer`: Index
    in the stage of the layer that attends; only slices need it. `branches`: Rejected answers of the
    preference pairs of a packed row, which take the place of its documents; None if its samples are
    no pairs.
    """

    documents: Documents | None = None
    slice: SliceDocuments | None = None
    kv_cache: KeyValueCache | None = None
    angles: Angles | None = None
    layer: int = 0
    branches: Branches | None = None

    @classmethod
    def from_microbatch(cls, microbatch: MicroBatch) -> Self:
        """The context of a micro-batch on the host, before there are a cache and angles."""
        documents = Documents.from_microbatch(microbatch)
        if isinstance(microbatch, PackedRow) and microbatch.branches:
            return cls(documents, branches=Branches.from_microbatch(microbatch))
        if documents is None or microbatch.slice is None:
            return cls(documents)
        return cls(documents, SliceDocuments.from_documents(documents, microbatch.slice.begin))

    @property
    def biases(self) -> tuple[()]:
        """None: all that is seen lies in the row."""
        return ()

    @property
    def positions(self) -> Tensor | None:
        """Positions of a packed row's tokens in their documents; None for those in whole rows."""
        if self.branches is not None:
            return self.branches.positions
        if self.documents is None:
            return None
        positions = self.documents.positions
        if self.slice is None or self.slice.begin == 0:
            return positions
        n_tokens = self.slice.n_tokens
        return torch.cat([positions[:n_tokens] + self.slice.begin, positions[n_tokens:]])

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of (rows, tokens, heads, head size) to itself, see `causal_attention`.

        Returns attended values, shape (rows, tokens, heads x head size).
        """
        if self.angles is not None:
            query, key = self.angles.turn(query), self.angles.turn(key)
        return self.attend_turned(query, key, value).flatten(2)

    def attend_turned(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        if self.branches is not None:
            return self.branches.attend(scaled(query, scale), key, value, window)
        if self.slice is None:
            return _attention_of_documents(
                query, key, value, self.documents, scale=scale, window=window
            )
        part = self.slice
        if self.kv_cache is None:
            raise ValueError("a slice of a sample needs the keys and values of those before it")
        n_tokens = part.n_tokens
        q, k, v = (each[0, :n_tokens] for each in (scaled(query, scale), key, value))
        layer = self.kv_cache.layer(self.layer)
        attended = cached_attention(q, k, v, cache=layer, part=part, window=window)[None]
        if part.others is not None:
            q, k, v = (each[:, n_tokens:] for each in (query, key, value))
            attended = torch.cat(
                [
                    attended,
                    _attention_of_documents(q, k, v, part.others, scale=scale, window=window),
                ],
                1,
            )
        return attended

    def in_layer(self, index: int) -> Self:
        """The context in a layer of the stage, whose keys and values the cache holds apart."""
        return self if self.slice is None else replace(self, layer=index)


def _attention_of_documents(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: Documents | None,
    *,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Attended values, tokens before heads, as all are given."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    return causal_attention(q, k, v, documents, scale=scale, window=window).transpose(1, 2)


WHOLE_ROWS = AttentionContext()
