"""Flash attention of documents laid end to end, by the kernels that torch is built with.

The operators behind `torch.nn.attention.varlen` are called as they are: that module came with torch
2.11, and its first call imports a compiler. The operators took the same arguments by place, scale
and windows by name, in all of torch 2.6 to 2.13, for CUDA and ROCm.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynapipe_hpc.models.documents import Documents

_MAX_HEAD_SIZE, _HEAD_MULTIPLE = 256, 8
_MIN_CAPABILITY = (8, 0)
_MIN_QUERIES = 2
_PROBE_QUERIES, _PROBE_KEYS = (5, 9), (12, 9)
_MAX_PROBE_ERROR = 0.05


class FlashSizes(NamedTuple):
    """Sizes that the operators are told of.

    `offsets`: Offsets of the documents of queries and of keys, int32, on the device. `window`:
    Number of keys that a query sees at most, itself included; None for all.
    """

    offsets: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    window: int | None = None

    @classmethod
    def from_documents(cls, queries: Documents, keys: Documents, window: int | None = None) -> Self:
        """Sizes of documents; see `flash_attention`."""
        # For a longest document of one token the operator would choose another arrangement of what
        # it leaves for backward; a length that none has is allowed.
        longest = max(queries.longest, _MIN_QUERIES), keys.longest
        return cls((queries.cu_seqlens, keys.cu_seqlens), longest, window)

    @property
    def options(self) -> Mapping[str, int]:
        """Number of keys before its own that a query sees, by the operators' name."""
        return {} if self.window is None else {"window_size_left": self.window - 1}


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    queries: Documents,
    keys: Documents,
    window: int | None = None,
) -> Tensor:
    """Causal attention within documents, of the shape of `query`: (tokens, heads, head size).

    The last query of a document sees its last key, and each query before it one key less. A
    document may have more keys than queries, but not fewer.
    """
    sizes = FlashSizes.from_documents(queries, keys, window)
    attended: Tensor = _FlashAttention.apply(query, key, value, sizes)  # type: ignore[no-untyped-call]
    return attended


class _FlashAttention(torch.autograd.Function):
    """The operators for both directions."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sizes: FlashSizes) -> Tensor:
        attended, *left = flash_forward(query, key, value, sizes)
        ctx.sizes = sizes
        ctx.save_for_backward(query, key, value, attended, *left)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *left = ctx.saved_tensors
        return *flash_backward(gradient, (query, key, value), left, ctx.sizes), None


def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, sizes: FlashSizes
) -> tuple[Tensor, ...]:
    """The operator for the forward pass: attended values, and what it leaves for backward."""
    attended, *left, _ = torch.ops.aten._flash_attention_forward(
        query, key, value, *sizes.offsets, *sizes.longest, 0.0, True, False, **sizes.options
    )
    return attended, *left


def flash_backward(
    gradient: Tensor, inputs: Sequence[Tensor], left: Sequence[Tensor], sizes: FlashSizes
) -> tuple[Tensor, ...]:
    """The operator for the backward pass: gradients of queries, keys and values."""
    attended, scores, *state = left
    gradients: tuple[Tensor, ...] = torch.ops.aten._flash_attention_backward(
        gradient,
        *inputs,
        attended,
        scores,
        *sizes.offsets,
        *sizes.longest,
        0.0,
        True,
        *state,
        **sizes.options,
    )
    return gradients


@cache
def flash_obstacle(device: torch.device, dtype: torch.dtype, head_size: int) -> str:
    """Reason why `flash_attention` cannot run, with a remedy; empty if it can.

    Its result and gradients are compared with written-out attention once, as builds of torch differ
    in what they leave out, and once did in how they align queries with keys.
    """
    if device.type != "cuda":
        return f"it needs a GPU, and the device is {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        return f"it needs 16-bit activations, not {name}: set training.dtype to bfloat16"
    if head_size % _HEAD_MULTIPLE or head_size > _MAX_HEAD_SIZE:
        return (
            f"it needs heads of a multiple of {_HEAD_MULTIPLE} up to {_MAX_HEAD_SIZE} numbers, "
            f"and the model's have {head_size}"
        )
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < _MIN_CAPABILITY:
        return "it needs compute capability {}.{}, and the GPU has {}.{}".format(
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
        found = _with_gradients(drawn, lambda *x: flash_attention(*x, queries=queries, keys=keys))
    except RuntimeError as error:  # also of what is not implemented for the device
        reason = str(error).partition("\n")[0]
        return f"torch {torch.__version__} cannot run it here ({reason}): install a build with it"
    wanted = _with_gradients([each.float() for each in drawn], _written_out)
    # Norms, as single numbers of 16 bits are off by more the larger they are.
    off = max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))
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
