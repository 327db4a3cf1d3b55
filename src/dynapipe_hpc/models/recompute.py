"""Recomputation in the backward pass of what the forward pass did not keep."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from dynapipe_hpc.models.deferred_weights import deferring


def recomputed(
    function: Callable[..., Tensor], *inputs: Tensor, also_kept: Sequence[Tensor | None] = ()
) -> Tensor:
    """The result of `function(*inputs)`, of which only the inputs are kept until backward.

    Tensors in `also_kept` are kept, too: the tensors that `function` reads besides its inputs.

    The backward pass runs `function` again, up to the last result that the forward pass would have
    kept. Dropout counts its random numbers, so it finds the same bits. No weight gradient is
    deferred, as its factors would have to be kept, which is what recomputation avoids.

    `torch.utils.checkpoint` does the same for everything that torch can do. It takes 0.35 ms
    more per call, as much as a small layer, and three seconds once, to load a compiler.
    """
    again = _Again(function, inputs, also_kept)
    with saved_tensors_hooks(again.leave_out, again.value), deferring(None):
        return function(*inputs)


class _Again:
    """Tensors that autograd would have saved for a function, in the order of saving."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        inputs: Sequence[Tensor],
        also_kept: Sequence[Tensor | None],
    ) -> None:
        self._function, self._n_inputs = function, len(inputs)
        # Saved by a node of autograd, so that hooks on saved tensors see all of them. Unless the
        # node's output is kept, torch 2.11 frees what the node has saved.
        anchor = torch.empty(0, requires_grad=True)
        output = _Keep.apply(anchor, *inputs, *also_kept)  # type: ignore[no-untyped-call]
        self._kept: Tensor = output
        self._n_left_out = 0
        self._values: dict[int, Tensor] = {}

    def leave_out(self, _: Tensor) -> int:
        self._n_left_out += 1
        return self._n_left_out - 1

    def value(self, index: int) -> Tensor:
        if index not in self._values:
            self._compute()
        return self._values.pop(index)

    def _compute(self) -> None:
        self._values.clear()
        saved = self._kept.grad_fn.saved_tensors  # type: ignore[union-attr]
        # Detached, so that a new autograd graph starts there.
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in saved[: self._n_inputs]]
        with (
            suppress(_CompleteError),
            torch.enable_grad(),
            saved_tensors_hooks(self._store, _unused),
        ):
            self._function(*inputs)

    def _store(self, tensor: Tensor) -> None:
        self._values[len(self._values)] = tensor.detach()
        if len(self._values) == self._n_left_out:
            raise _CompleteError


class _CompleteError(Exception):
    """All that is needed has been computed."""


class _Keep(torch.autograd.Function):
    """Saves tensors for a backward pass that never comes."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # noqa: ARG004 - torch's protocol
        raise AssertionError("nothing depends on the result")


def _unused(_: None) -> Tensor:
    raise AssertionError("the graph of the second computation is dropped")
