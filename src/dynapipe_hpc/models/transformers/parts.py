"""Parts of a decoder of `transformers`: what its layers hold, compute and keep.

Layers run once on the device `meta`, which has shapes but no numbers, in stacks of two depths: one
layer's needs are the difference. Only attention does not run, as its kernels differ between
devices: a stand-in keeps what fused kernels keep.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from dynapipe_hpc.architecture.blocks import ends
from dynapipe_hpc.architecture.lora import frozen_but_adapters
from dynapipe_hpc.architecture.part import (
    HEAD,
    LAYER,
    NOTHING,
    Amount,
    Block,
    Part,
    Side,
    Work,
    total,
)
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.attention import attention_in_groups, causal_attention
from dynapipe_hpc.models.batch import Batch, Labels
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.packed_attention import window_bias
from dynapipe_hpc.models.transformers.attention import Scores, capped_attention
from dynapipe_hpc.models.transformers.model import META
from dynapipe_hpc.models.transformers.stage import TransformersStage

_SIZES = ((1, 512), (1, 1024), (2, 512))
"""Micro-batches that layers run: number of samples, and tokens of each."""
_DEPTHS = (1, 2)


def decoder_parts(shape: TransformersShape, dtype: str, *, is_packed: bool) -> Mapping[str, Part]:
    """Parts of each kind: layer, embedding, head.

    A layer has the mean needs of all kinds of layers, but the largest transient memory.
    """
    # In 64 bits, counts of numbers are those of 32 bits, as nothing rounds to 32 bits on the way.
    traced: torch.dtype = getattr(torch, "float32" if dtype == "float64" else dtype)
    rows = _Rows(traced, is_packed=is_packed)
    kinds = [
        (_layer_needs(kind, rows), share)
        for kind, share in TransformersStage.layer_kinds(shape)
        if isinstance(kind, TransformersShape)
    ]
    windows = {needs.window for needs, _ in kinds} - {math.inf}
    layer = Block(
        shape.weights()[LAYER].n_numbers,
        largest_weight=shape.largest_trained,
        work=Work(*(_mean([(needs.work[i], share) for needs, share in kinds]) for i in range(3))),
        deferrable=Amount(2 * shape.n_deferrable),
        kept=_mean([(needs.kept, share) for needs, share in kinds]),
        recomputed_in=(Recompute.FULL,),
        frozen=shape.weights()[LAYER].n_frozen,
    )
    width, size = shape.hidden_size, _SIZES[0]
    n_vectors = shape.weights()[HEAD].n_numbers - shape.vocab_size * width
    sides = {"embedded": Side.INPUTS, "predicted": Side.INPUTS}
    # Embedding and head as in every family, except that the last norm is traced.
    ends_of_model = ends(width, width, shape.vocab_size, **sides, positions=0, vectors=n_vectors)
    norm, logits = ends_of_model[HEAD].blocks
    n_kept = round(_run(shape, rows, size, 0, last=True).kept / math.prod(size))
    norm = replace(norm, kept=Amount(width + n_kept))  # with the norm's input
    parts = {
        LAYER: Part(
            Side.INPUTS,
            (layer,),
            entering=Amount(width),
            transient=Amount(*map(max, zip(*(needs.transient for needs, _ in kinds), strict=True))),
            window=min(windows, default=math.inf),
        ),
        **ends_of_model,
        HEAD: replace(ends_of_model[HEAD], blocks=(norm, logits)),
    }
    return frozen_but_adapters(parts, shape.lora)


class _Needs(NamedTuple):
    """Needs of a layer; numbers are of the traced type."""

    work: Work
    kept: Amount
    transient: Amount
    window: float


class _Rows(NamedTuple):
    """Properties of the micro-batches that layers run."""

    dtype: torch.dtype
    is_packed: bool

    @property
    def has_flash(self) -> bool:
        """Whether attention of documents has a kernel of its own, on GPUs."""
        return self.is_packed and self.dtype.itemsize < torch.float32.itemsize


@dataclass
class _Calls:
    """Stand-ins for attention and for products of experts, with a record of their calls."""

    has_flash: bool
    max_tokens: int
    scores_flops: int = 0
    windows: set[float] = field(default_factory=set)
    expert_flops: int = 0

    def attend(self, batch: Batch, _: int, projections: Sequence[Tensor], scores: Scores) -> Tensor:
        window, cap = scores.window, scores.cap
        query, key, value = projections
        documents = batch.segments
        assert isinstance(documents, Documents | None)  # noqa: S101 - types
        if window is not None and window >= self.max_tokens:
            window = None
        self.windows.add(math.inf if window is None else window)
        if cap is not None:  # computed by a formula
            by_formula = partial(capped_attention, cap=cap)
            return causal_attention(query, key, value, documents, window=window, attend=by_formula)
        self.scores_flops += 4 * query.shape[1] * query.shape[3]
        if self.has_flash:
            return _fused(query, key, value)
        if documents is None:
            return _fused(query, key, value, bias=window_bias(query.shape[2], window, query))
        groups = documents.length_groups
        masks = [window_bias(size.tokens, window, query) for size in groups.sizes]
        return attention_in_groups(query, key, value, groups, biases=masks, attend=_fused)


def _fused(
    query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None = None, **_: object
) -> Tensor:
    """Stands in for fused attention; takes the arguments of `attention`."""
    n_heads = query.shape[1] // key.shape[1]
    if bias is not None and query.dtype.itemsize < torch.float32.itemsize:
        # No GPU kernel takes both a bias and grouped queries, see `attention`.
        key, value = (each.repeat_interleave(n_heads, 1) for each in (key, value))
    kept = (query, key, value) if bias is None else (query, key, value, bias)
    attended: Tensor = _FusedAttention.apply(*kept)  # type: ignore[no-untyped-call]
    return attended


class _FusedAttention(Function):
    """Keeps what fused attention keeps, except one number per head and token."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, *others: Tensor) -> Tensor:
        attended = torch.empty_like(query)  # like kernels, with the memory layout of queries
        ctx.save_for_backward(query, *others, attended)
        return attended


class _GroupedProduct(Function):
    """Computes nothing, but keeps what products of experts do: inputs, if weights are trained."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs if weight.requires_grad else weight, weight)
        return inputs.new_empty(len(inputs), weight.shape[-1])


class _ExpertProducts(TorchFunctionMode):
    """Replaces grouped matrix products, as the device `meta` supports them in one dtype only."""

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self._calls = calls
        names = ("grouped_mm", "_grouped_mm")
        self._products = {getattr(m, n, None) for m in (torch, functional) for n in names} - {None}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self._products:
            return func(*args, **(kwargs or {}))
        inputs, weight = args[:2]
        self._calls.expert_flops += 2 * inputs.numel() * weight.shape[-1]
        return _GroupedProduct.apply(inputs, weight)  # type: ignore[no-untyped-call]


class _Stack(NamedTuple):
    """Needs of a layer stack for a micro-batch; numbers are of the traced type."""

    flops: float
    kept: float
    transient: float
    scores_flops: int
    window: float


def _run(
    shape: TransformersShape, rows: _Rows, size: tuple[int, int], n_layers: int, *, last: bool
) -> _Stack:
    # One layer comes before, and one after, so that the stage is neither the first nor the last.
    model, dtype = shape.with_layers(n_layers + 2), rows.dtype
    layers = range(n_layers + 2, n_layers + 2) if last else range(1, 1 + n_layers)
    n_samples, n_tokens = size
    row_size = (1, n_samples * n_tokens) if rows.is_packed else size
    ids = torch.zeros(row_size, dtype=torch.int64)
    documents = Documents.from_lengths([n_tokens] * n_samples) if rows.is_packed else None
    labels = Labels(ids, ids, ids) if last else None
    batch = Batch(row_size, documents, labels=labels).to(META)
    hidden = torch.empty(*batch.size, shape.hidden_size, dtype=dtype, device=META)
    hidden.requires_grad_()
    calls = _Calls(rows.has_flash, shape.max_tokens)
    try:
        stage = TransformersStage(model, layers, first=False, last=last, dtype=dtype, device=META)
        stage.attend = calls.attend
        with (
            FlopCounterMode(display=False) as counted,
            LiveMemory() as live,
            _ExpertProducts(calls),
        ):
            output = stage.run(hidden, batch, Recompute.NONE)
    except RuntimeError as error:
        raise InputError(
            f"layers of a {shape.model_type} do not run on meta tensors, so "
            f"their costs cannot be estimated ({str(error).partition(chr(10))[0]}); measure them: "
            "'dynapipe-hpc profile CONFIG -o TABLE.h5', then set planner.cost.kind to \"profiled\" "
            "and planner.cost.path to the table"
        ) from error
    flops, window = counted.get_total_flops(), min(calls.windows, default=math.inf)
    numbers = (live.live_bytes, live.peak_bytes - live.live_bytes)  # while the output lives
    del output
    kept, transient = (n_bytes / dtype.itemsize for n_bytes in numbers)
    return _Stack(flops + calls.expert_flops, kept, transient, calls.scores_flops, window)


def _layer_needs(shape: TransformersShape, rows: _Rows) -> _Needs:
    shallow, deep = (
        [_run(shape, rows, size, depth, last=False) for size in _SIZES] for depth in _DEPTHS
    )
    pairs, window = list(zip(shallow, deep, strict=True)), deep[0].window
    flops = _fitted([more.flops - less.flops for less, more in pairs], window)
    kept = _fitted([more.kept - less.kept for less, more in pairs], window)
    transient = _fitted([more.transient for more in deep], window)
    scores = deep[0].scores_flops - shallow[0].scores_flops
    far = Amount(per_far_pair=-scores) if window < math.inf and rows.has_flash else NOTHING
    attention = total(Amount(per_pair=scores + flops.per_own_pair), far)
    linear = Amount(flops.per_own)
    n_numbers, n_frozen, _ = shape.weights()[LAYER]
    spared = linear.per_own - 2 * (n_numbers - n_frozen) if n_frozen else 0
    return _Needs(Work(linear, attention, Amount(spared)), kept, transient, window)


def _fitted(values: Sequence[float], window: float = math.inf) -> Amount:
    """The amount that gives these values for `_SIZES`.

    A mask grows with the square of a row's length alone; a layer with a window has one only where
    rows are longer than the window.
    """
    terms = [(rows * tokens, rows * tokens**2, tokens**2) for rows, tokens in _SIZES]
    per_own, per_own_pair, per_square = map(round, np.linalg.solve(terms, values))
    kind = "per_masked_square" if window < math.inf else "per_square"
    return Amount(per_own, per_own_pair=per_own_pair)._replace(**{kind: per_square})


def _mean(amounts: Sequence[tuple[Amount, float]]) -> Amount:
    """The mean, rounded up, so that a mask in only some layers does not become 0."""
    columns = zip(*([share * each for each in amount] for amount, share in amounts), strict=True)
    return Amount(*(math.ceil(round(sum(column), 6)) for column in columns))
