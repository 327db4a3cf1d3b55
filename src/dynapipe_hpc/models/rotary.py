"""Rotary positions: queries and keys are rotated by angles that grow with their positions.

Pairs of numbers of a head are rotated: number i with number i + half of the head's width, as in
Llama of `transformers`.

Source: Su et al., "RoFormer", arXiv:2104.09864, section 3.2.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dynapipe_hpc.architecture.decoder import DecoderShape
from dynapipe_hpc.architecture.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
)


class Angles(NamedTuple):
    """Cosines and sines, scaled by YaRN, each of shape (tokens, 1, half of the head size)."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def from_positions(cls, shape: DecoderShape, positions: Tensor, dtype: torch.dtype) -> "Angles":
        """Angles of tokens at positions, shape (tokens,), computed in float32 at least."""
        wide = torch.promote_types(dtype, torch.float32)
        settings = shape.layer_settings
        theta, scaling = settings.rope_theta, settings.rope_scaling
        speeds = _speeds(shape.head_width, theta, scaling, dtype=wide, device=positions.device)
        angles = (positions.to(wide).unsqueeze(-1) * speeds).unsqueeze(1)
        factor = scaling.vector_factor if isinstance(scaling, YarnScaling) else 1.0
        return cls((angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype))

    def turn(self, vectors: Tensor) -> Tensor:
        """Rotates vectors; arguments and result have shape (rows, tokens, heads, head size)."""
        turned: Tensor = _Turn.apply(vectors, *self)  # type: ignore[no-untyped-call]
        return turned


class _Turn(torch.autograd.Function):
    """Rotates vectors, and gradients back; runs half the number of kernels that autograd would."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turned(vectors, cosines, sines, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cosines, sines = ctx.saved_tensors
        return _turned(gradient, cosines, sines, -1), None, None


def _turned(vectors: Tensor, cosines: Tensor, sines: Tensor, sign: int) -> Tensor:
    turned = torch.empty_like(vectors, memory_format=torch.contiguous_format)
    first, second = vectors.chunk(2, -1)
    for half, along, across, by in zip(
        turned.chunk(2, -1), (first, second), (second, first), (-sign, sign), strict=True
    ):
        torch.mul(along, cosines, out=half)
        half.addcmul_(across, sines, value=by)
    return turned


@cache
def _speeds(
    head_size: int,
    theta: float,
    scaling: RopeScaling | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Angle per position of every pair of numbers, shape (head_size / 2,)."""
    speeds = 1 / theta ** (torch.arange(0, head_size, 2).to(dtype) / head_size)
    return _scaled(speeds, scaling, theta).to(device)


def _scaled(speeds: Tensor, scaling: RopeScaling | None, theta: float) -> Tensor:
    match scaling:
        case None:
            return speeds
        case LinearScaling(factor=factor):
            return speeds / factor
        case Llama3Scaling(factor=factor):
            # Pairs that make many full turns in the original rows keep their speeds.
            turns = scaling.original_max_tokens * speeds / (2 * math.pi)
            limits = scaling.high_freq_factor - scaling.low_freq_factor
            kept = ((turns - scaling.low_freq_factor) / limits).clamp(0, 1)
            return (1 - kept) * speeds / factor + kept * speeds
        case YarnScaling(factor=factor):
            # Speeds are divided from one pair number on, and unchanged before a lower one. At these
            # numbers, which may be fractions, a pair would make `beta_slow` and `beta_fast` turns.
            n_pairs = len(speeds)
            begin, end = (
                n_pairs
                * math.log(scaling.original_max_tokens / (turns * 2 * math.pi))
                / math.log(theta)
                for turns in (scaling.beta_fast, scaling.beta_slow)
            )
            if scaling.truncate:
                begin, end = math.floor(begin), math.ceil(end)
            begin, end = max(begin, 0), min(end, 2 * n_pairs - 1)
            places = torch.arange(n_pairs, dtype=speeds.dtype)
            divided = ((places - begin) / ((end - begin) or 1e-3)).clamp(0, 1)
            return divided * speeds / factor + (1 - divided) * speeds
