"""Losses of single tokens, seen while a model computes their weighted sum."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

See = Callable[[Tensor, Tensor], None]
"""Function that takes the losses of predictions and their weights, each of shape (n,)."""

_SEE: ContextVar[See | None] = ContextVar("token losses", default=None)


@contextmanager
def seeing_token_losses(see: See) -> Iterator[None]:
    """Shows the losses of a model that runs inside the block; every shard sees the same."""
    outer = _SEE.set(see)
    try:
        yield
    finally:
        _SEE.reset(outer)


def show_token_losses(losses: Tensor, weights: Tensor) -> None:
    """Shows losses of predictions and their weights, as the model got them, if anybody looks."""
    see = _SEE.get()
    if see is not None:
        see(losses, weights)
