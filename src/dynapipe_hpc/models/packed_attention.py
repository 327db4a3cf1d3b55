"""Attention of documents laid end to end, to their own keys and those of prompts or a cache.

The cache holds keys and values of a sample's tokens so far, for the tokens that come after them.

On GPUs, it is computed by kernels that torch is built with. The operators behind
`torch.nn.attention.varlen` are called directly: that module came with torch 2.11, and its first
call imports a compiler. In torch 2.6 to 2.13, for CUDA and ROCm, the operators took the same
arguments: scale and windows by name, all others by position.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynapipe_hpc.models.documents import Branches, Documents

_MAX_HEAD_SIZE, _HEAD_MULTIPLE = 256, 8
_MIN_CAPABILITY = (8, 0)
_MIN_QUERIES = 2
_PROBE_QUERIES, _PROBE_KEYS = (5, 9), (12, 9)
_MAX_PROBE_ERROR = 0.05


class LayerCache:
    """Keys and values of one layer, and the sums of their gradients.

    A buffer holds the keys or values of all tokens, so a pass over some tokens copies nothing of
    other tokens. In the backward direction, later tokens come first; their contributions to the
    gradients of earlier keys and values wait in float32, as sums of many 16-bit numbers would lose
    small ones.
    """

    def __init__(self, n_tokens: int) -> None:
        """Makes an empty cache with room for a number of tokens; more tokens make it grow."""
        self._n_tokens = n_tokens
        self._kept: list[Tensor] = []
        self._sums: list[Tensor] = []

    @property
    def tensors(self) -> list[Tensor]:
        """Keys and values, and sums of gradients while there are any: (tokens, key heads, size)."""
        return [*self._kept, *self._sums]

    def write(self, begin: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes keys and values of tokens from `begin` on; returns those of all tokens so far.

        The same tokens may be written again, as recomputation in the backward pass does.
        """
        n_before, n_tokens = len(self._kept[0]) if self._kept else 0, begin + len(key)
        if n_tokens > n_before:
            n_rows = max(n_tokens, 2 * n_before or self._n_tokens)
            larger = [key.new_empty((n_rows, *key.shape[1:])) for _ in range(2)]
            if n_before:
                for new, old in zip(larger, self._kept, strict=True):
                    new[:n_before] = old
            self._kept = larger
        keys, values = self.read(n_tokens)
        keys[begin:], values[begin:] = key, value
        return keys, values

    def read(self, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens before `end`."""
        keys, values = (kept[:end] for kept in self._kept)
        return keys, values

    def sum_gradients(
        self, begin: int, gradients: Sequence[Tensor], first: int = 0
    ) -> tuple[Tensor, ...]:
        """Adds up gradients; returns the sums of tokens from `begin` on, which are now complete."""
        if not self._sums:
            wide = torch.promote_types(gradients[0].dtype, torch.float32)
            self._sums = [
                gradient.new_zeros(first + len(gradient), *gradient.shape[1:], dtype=wide)
                for gradient in gradients
            ]
        for total, gradient in zip(self._sums, gradients, strict=True):
            total[first:].add_(gradient)
        complete = tuple(total[begin:].to(gradients[0].dtype) for total in self._sums)
        self._sums = [total[:begin] for total in self._sums] if begin else []
        return complete


class KeyValueCache:
    """Keys and values of a sample's tokens so far, of all layers of a stage."""

    def __init__(self, n_tokens: int = 0) -> None:
        self.n_tokens = 0  # so far, in generation; unused in training
        self._n_tokens = n_tokens
        self._layers: dict[int, LayerCache] = {}

    def layer(self, index: int) -> LayerCache:
        return self._layers.setdefault(index, LayerCache(self._n_tokens))

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for layer in self._layers.values() for tensor in layer.tensors]


class CachedKeys(NamedTuple):
    """Cache of keys and values, to which the keys and values of a slice are added.

    The gradients of a slice are complete only after the backward passes of all later tokens, so
    backward passes run in descending order.
    """

    cache: LayerCache
    begin: int  # token of the sample with which the slice begins
    first: int  # first token that it sees

    def write(self, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        return tuple(each[self.first :] for each in self.cache.write(self.begin, key, value))

    def read(self, n_tokens: int) -> tuple[Tensor, ...]:
        return tuple(each[self.first :] for each in self.cache.read(self.begin + n_tokens))


Source = CachedKeys | Branches | None
"""Keys and values that are a part of a cache, or of a row that holds each prompt only once."""


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    queries: Documents,
    keys: Documents,
    source: Source = None,
    window: int | None = None,
) -> Tensor:
    """Causal attention within documents, of the shape of `query`: (tokens, heads, head size).

    The last query of a document sees its last key, and each query before it one key less. A
    document may have more keys than queries, but not fewer.

    `source`: Keys and values to attend to, if `key` and `value` are only part of them. `window`:
    Largest number of keys that a query sees, itself included; None means all.
    """
    sizes = _Sizes(queries, keys, window)
    attended: Tensor = _PackedAttention.apply(query, key, value, source, sizes)  # type: ignore[no-untyped-call]
    return attended


class _Sizes(NamedTuple):
    queries: Documents
    keys: Documents
    window: int | None

    @property
    def of_operators(self) -> tuple[Any, ...]:
        # If the longest document had one token, the operator would arrange what it leaves for
        # backward differently; a longest length that no document has is allowed.
        longest = max(self.queries.longest, _MIN_QUERIES), self.keys.longest
        return self.queries.cu_seqlens, self.keys.cu_seqlens, *longest

    @property
    def options(self) -> Mapping[str, int]:
        return {} if self.window is None else {"window_size_left": self.window - 1}


class _PackedAttention(torch.autograd.Function):
    """The kernels for both directions. Keys and values of prompts and caches are kept only once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, source: Source, sizes: _Sizes
    ) -> Tensor:
        ctx.source, ctx.sizes = source, sizes
        kept: tuple[Tensor, ...] = key, value
        sources = kept
        match source:
            case CachedKeys():
                # Not saved for backward: the cache changes, as later tokens are written to it.
                sources, kept = source.write(key, value), ()
            case Branches():
                sources = source.gather(key), source.gather(value)
        attended, *left = _forward(query, sources, sizes)
        ctx.save_for_backward(query, *kept, attended, *left)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        source: Source = ctx.source
        query, *left = ctx.saved_tensors
        if isinstance(source, CachedKeys):
            sources = source.read(len(query))
        else:
            key, value, *left = left
            sources = key, value
        if isinstance(source, Branches):
            sources = source.gather(key), source.gather(value)
        grad_query, *gradients = _backward(gradient, (query, *sources), left, ctx.sizes)
        match source:
            case CachedKeys(cache, begin, first):
                gradients = [*cache.sum_gradients(begin, gradients, first)]
            case Branches():
                gradients = [source.scatter(each, len(query)) for each in gradients]
        return grad_query, *gradients, None, None


def _has_operators(query: Tensor) -> bool:
    """Whether torch's operators support the device of a tensor."""
    return query.is_cuda


def _forward(query: Tensor, sources: Sequence[Tensor], sizes: _Sizes) -> tuple[Tensor, ...]:
    """Attended values, and what is left for the backward pass."""
    if _has_operators(query):
        attended, *left, _ = torch.ops.aten._flash_attention_forward(
            query, *sources, *sizes.of_operators, 0.0, True, False, **sizes.options
        )
        return attended, *left
    parts = [_attention_on_cpu(*each, sizes.window) for each in _split(query, sources, sizes)]
    attended = parts[0][0] if len(parts) == 1 else torch.cat([part for part, _ in parts])
    return attended, *(scores for _, scores in parts)


def _backward(
    gradient: Tensor, inputs: Sequence[Tensor], left: Sequence[Tensor], sizes: _Sizes
) -> Sequence[Tensor]:
    query, *sources = inputs
    attended, *scores = left
    if _has_operators(query):
        sums, *state = scores
        gradients: tuple[Tensor, ...] = torch.ops.aten._flash_attention_backward(
            gradient,
            *inputs,
            attended,
            sums,
            *sizes.of_operators,
            0.0,
            True,
            *state,
            **sizes.options,
        )
        return gradients
    parts = [
        _gradients_on_cpu(grad_output, each, (out, sums), sizes.window)
        for each, grad_output, out, sums in zip(
            _split(query, sources, sizes),
            torch.split(gradient, sizes.queries.lengths),
            torch.split(attended, sizes.queries.lengths),
            scores,
            strict=True,
        )
    ]
    return parts[0] if len(parts) == 1 else [torch.cat(each) for each in zip(*parts, strict=True)]


def _split(
    query: Tensor, sources: Sequence[Tensor], sizes: _Sizes
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    keys, values = (torch.split(side, sizes.keys.lengths) for side in sources)
    return zip(torch.split(query, sizes.queries.lengths), keys, values, strict=True)


def _attention_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """The forward pass by torch's flash attention for CPUs: attended values, logsumexp of scores.

    Its causal attention needs equally many keys and queries, so earlier keys take a separate call,
    in which each query sees all of them. The attended values of both calls are averaged, weighted
    by exponentials of their logsumexps. If a window hides some keys from some queries, there is one
    call, with a mask.
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


def _gradients_on_cpu(
    gradient: Tensor,
    inputs: Sequence[Tensor],
    left: Sequence[Tensor],
    window: int | None = None,
) -> list[Tensor]:
    """The backward pass, by the combined output of all calls: gradients of inputs."""
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
    # Query heads that share keys and values add up their gradients of these.
    return [
        each[0].transpose(0, 1).unflatten(1, (of_input.shape[1], -1)).sum(2)
        for of_input, each in zip(inputs, gradients, strict=True)
    ]


def _calls(
    query: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> Iterator[tuple[Tensor, Tensor, Mapping[str, Any]]]:
    """Keys and values of the queries' own tokens, then of earlier ones, each with mask options.

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
    """Each tensor as a row with all query heads, shape (1, heads, tokens, head size)."""
    for each in (query, keys, values):
        n_shared = query.shape[1] // each.shape[1]
        heads = each if n_shared == 1 else each.repeat_interleave(n_shared, 1)
        yield heads.transpose(0, 1)[None]


def visible_bias(n_tokens: int, n_keys: int, window: int | None, like: Tensor) -> Tensor:
    """Bias of the last tokens of a row, shape (1, 1, n_tokens, n_keys).

    It is minus infinity for keys that are later than the token, or outside of its window.
    """
    positions = torch.arange(n_keys, device=like.device)
    distances = positions[n_keys - n_tokens :].unsqueeze(1) - positions
    hidden = (distances < 0) | (distances >= (n_keys if window is None else window))
    return like.new_zeros(1, 1, n_tokens, n_keys).masked_fill_(hidden, -torch.inf)


def window_bias(n_tokens: int, window: int | None, like: Tensor) -> Tensor | None:
    """Bias of complete rows whose tokens see at most a window; None without a window."""
    return None if window is None else visible_bias(n_tokens, n_tokens, window, like)


def scaled(query: Tensor, scale: float | None) -> Tensor:
    """Queries for kernels that scale scores by one over the root of the head size only."""
    factor = 1.0 if scale is None else scale * math.sqrt(query.shape[-1])
    return query if math.isclose(factor, 1.0) else query * factor


@cache
def flash_obstacle(device: torch.device, dtype: torch.dtype, head_size: int) -> str:
    """Reason why `packed_attention` cannot run, with a remedy; empty if it can.

    Its result and gradients are compared once with attention computed by its formula, as builds of
    torch differ in what they leave out, and used to differ in how they align queries with keys.
    """
    if device.type != "cuda":
        return f"it needs a GPU, but the device is {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        return f"it needs 16-bit activations, not {name}: set training.dtype to bfloat16"
    if head_size % _HEAD_MULTIPLE or head_size > _MAX_HEAD_SIZE:
        return (
            f"it needs a head size that is a multiple of {_HEAD_MULTIPLE} and at most "
            f"{_MAX_HEAD_SIZE}, but the model's is {head_size}"
        )
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < _MIN_CAPABILITY:
        return "it needs compute capability {}.{}, but the GPU has {}.{}".format(
            *_MIN_CAPABILITY, *capability
        )
    return _probe_obstacle(device, dtype, head_size)


def _probe_obstacle(device: torch.device, dtype: torch.dtype, head_size: int) -> str:
    stream = torch.Generator().manual_seed(1)
    drawn = [
        torch.randn(n, heads, head_size, generator=stream).to(device, dtype)
        for n, heads in ((sum(_PROBE_QUERIES), 4), (sum(_PROBE_KEYS), 2), (sum(_PROBE_KEYS), 2))
    ]
    queries, keys = (Documents.from_lengths(n).to(device) for n in (_PROBE_QUERIES, _PROBE_KEYS))
    try:
        computed = _with_gradients(
            drawn, lambda *x: packed_attention(*x, queries=queries, keys=keys)
        )
    except RuntimeError as error:  # torch raises it also where a device lacks the kernel
        reason = str(error).partition("\n")[0]
        return f"torch {torch.__version__} cannot run it here ({reason}): install a build with it"
    expected = _with_gradients([each.float() for each in drawn], _written_out)
    # Norms are compared, as errors of single 16-bit numbers grow with the numbers.
    off = max(float((a - b).norm() / b.norm()) for a, b in zip(computed, expected, strict=True))
    if off <= _MAX_PROBE_ERROR:
        return ""
    return (
        f"in torch {torch.__version__} it is wrong by {off:.1%} on two small documents: "
        "install a newer build"
    )


def _with_gradients(inputs: list[Tensor], attend: Any) -> list[Tensor]:
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in inputs]
        attended = attend(*leaves)
        return [attended.detach(), *torch.autograd.grad(attended, leaves, 2 * attended.detach())]


def _written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    n_heads = query.shape[1] // key.shape[1]
    attended = []
    lengths = zip((query, key, value), (_PROBE_QUERIES, _PROBE_KEYS, _PROBE_KEYS), strict=True)
    sides = (torch.split(each, list(n_tokens)) for each, n_tokens in lengths)
    for q, *sources in zip(*sides, strict=True):
        k, v = (each.repeat_interleave(n_heads, 1) for each in sources)
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        later = torch.ones_like(scores[0]).triu(1 + len(k) - len(q)) > 0
        weights = scores.masked_fill(later, -torch.inf).softmax(2)
        attended.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(attended)
