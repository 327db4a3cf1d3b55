"""State of an optimizer, independent of the layout of its buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}  # as AdamW calls them


@dataclass(frozen=True, slots=True)
class Segment:
    """Numbers that belong to consecutive weights in `FlatParameters`.

    Attributes:
        start: Index of the first of those weights.
        values: Numbers, shape (n,), not a copy.
    """

    start: int
    values: Tensor


FlatState = Mapping[str, Sequence[Segment]]  # by kind: "weight" and the moments


def flat_state(adamw: torch.optim.AdamW, weights: Tensor, first: int) -> FlatState:
    """Weights that an optimizer updates, and their moments.

    Args:
        adamw: Optimizer whose groups have one parameter each: pieces of `weights`, in order.
        weights: Weights, shape (n,).
        first: Index of the first weight in the flat buffer.
    """
    found: dict[str, list[Segment]] = {"weight": [Segment(first, weights)]}
    for kind, key in MOMENTS.items():
        start = first
        found[kind] = []
        for piece in _pieces(adamw):
            found[kind].append(Segment(start, _state(adamw, piece)[key]))
            start += len(piece)
    return found


def count_updates(adamw: torch.optim.AdamW) -> int:
    """Number of updates so far."""
    return int(_state(adamw, _pieces(adamw)[0])["step"].item())


def set_updates(adamw: torch.optim.AdamW, n_updates: int) -> None:
    """Sets the number of updates from which AdamW continues."""
    for piece in _pieces(adamw):
        _state(adamw, piece)["step"].fill_(n_updates)


def _pieces(adamw: torch.optim.AdamW) -> list[Tensor]:
    return [piece for group in adamw.param_groups for piece in group["params"]]


def _state(adamw: torch.optim.AdamW, piece: Tensor) -> dict[str, Tensor]:
    """State of a parameter, created as AdamW would at the first step if it is missing."""
    if piece not in adamw.state:
        step = torch.zeros((), dtype=torch.float32, device=piece.device)
        moments = {key: torch.zeros_like(piece) for key in MOMENTS.values()}
        adamw.state[piece] = {"step": step, **moments}
    state: dict[str, Tensor] = adamw.state[piece]
    return state
