"""Attention of decoders of `transformers`: causal, with windows and soft caps, by documents.

`transformers` calls it through its attention interface, under the name `ATTENTION`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.packed_attention import visible_bias

ATTENTION = "dynapipe_hpc"
"""Name of this attention in the attention interface of `transformers`."""
_UNREAD = frozenset({"position_ids", "use_cache", "output_attentions", "cache_position"})
"""Arguments that layers pass and that change nothing here."""


class Scores(NamedTuple):
    """Options of scores, see `capped_attention`; None means the default, or no such option."""

    scale: float | None = None
    window: int | None = None
    cap: float | None = None


Attend = Callable[[Sequence[Tensor], Scores], Tensor]
"""Attention of query, key and value, shape (rows, heads, tokens, head size)."""
AttendInLayer = Callable[[Batch, int, Sequence[Tensor], Scores], Tensor]
"""Attention in a layer of a micro-batch: takes batch, layer, projections and `Scores`."""

# Not an argument: layers of `transformers` lie between, and some do not pass on their arguments.
_ATTEND: ContextVar[Attend] = ContextVar("attention")


@contextmanager
def attending_by(attend: Attend) -> Iterator[None]:
    """Block in which layers call a function for attention."""
    outer = _ATTEND.set(attend)
    try:
        yield
    finally:
        _ATTEND.reset(outer)


def attend_within(
    batch: Batch, layer: int, projections: Sequence[Tensor], scores: Scores
) -> Tensor:
    scale, window, cap = scores
    attend = None if cap is None else partial(capped_attention, cap=cap)
    q, k, v = (each.transpose(1, 2) for each in projections)
    attended = batch.attend(q, k, v, layer=layer, scale=scale, window=window, attend=attend)
    return attended.transpose(1, 2)


class _AttentionReached(Exception):  # noqa: N818 - no error
    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores = scores


def reached_attention(layer: Callable[[Attend], object]) -> Scores | None:
    """Options of the first attention that a layer, run with it, calls; None if it calls none."""

    def reach(_: Sequence[Tensor], scores: Scores) -> Tensor:
        raise _AttentionReached(scores)

    try:
        layer(reach)
    except _AttentionReached as reached:
        return reached.scores
    return None


def attention_interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *masks: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as `transformers` calls it, inside `attending_by`.

    Returns attended values, shape (rows, tokens, heads, head size), and no weights of attention.
    Raises `InputError`: An option is not supported.
    """
    scores = Scores(*(options.pop(n, None) for n in ("scaling", "sliding_window", "softcap")))
    wanted = {
        name
        for name, value in options.items()
        if name not in _UNREAD and (isinstance(value, Tensor) or value)
    }
    if any(mask is not None for mask in masks):
        wanted.add("attention_mask")
    if value.shape[-1] != query.shape[-1]:
        wanted.add("values and queries of different sizes")
    if not getattr(module, "is_causal", True):
        wanted.add("is_causal = false")
    if wanted:
        raise InputError(
            f"{type(module).__name__} of transformers asks attention for "
            f"{', '.join(sorted(wanted))}, which is not supported; choose another model"
        )
    attended = _ATTEND.get()((query, key, value), scores)
    return attended.transpose(1, 2).contiguous(), None


class SdpaCalls(TorchFunctionMode):
    """Mode that replaces torch's attention by this package's, for models that call it.

    The models get a marker tensor in place of a mask: a call with that very tensor is causal, with
    nothing added to its scores.
    """

    def __init__(self, mark: Tensor) -> None:
        super().__init__()
        self._mark = mark

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        drops = args[4] if len(args) > 4 else kwargs.get("dropout_p")
        if mask is not self._mark or drops:
            raise InputError(
                "the model adds to the scores of torch's attention, or drops some, which is not "
                "supported; choose another model"
            )
        projections = args[:3] if args else [kwargs[n] for n in ("query", "key", "value")]
        with DisableTorchFunction():
            return _ATTEND.get()(projections, Scores(kwargs.get("scale")))


def capped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    cap: float,
) -> Tensor:
    """Attention with scores capped to cap x tanh(score / cap), by its formula; see `attention`."""
    n_heads = query.shape[1] // key.shape[1]
    if n_heads > 1:
        key, value = (each.repeat_interleave(n_heads, 1) for each in (key, value))
    if is_causal:
        bias = visible_bias(query.shape[2], key.shape[2], None, query)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = cap * ((query @ key.transpose(2, 3)) * (factor / cap)).tanh()
    if bias is not None:
        scores = scores + bias
    weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
    return weights.to(query.dtype) @ value
