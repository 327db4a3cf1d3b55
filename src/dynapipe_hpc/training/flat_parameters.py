"""The weights of a module in one buffer, and their gradients in another."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Numbers: no vector of a processor lies across two shards, so bits do not depend on sharding.
ALIGNMENT = 64


class FlatParameters:
    """Two contiguous buffers, of which every weight and every gradient is a view.

    So weights are updated, and gradients are added up over replicas, measured, scaled and
    cleared, in one call each. Matrices come first, then vectors, then zeros that fill up equal
    shards.

    Attributes:
        weights: Shape (n,), of the type of the parameters.
        gradients: Shape (n,), of the same type, or float32 if that has 16 bits.
        n_decaying: Numbers up to the end of the matrices.
        n_weights: Numbers that belong to a parameter.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], n_shards: int = 1) -> None:
        """Moves parameters of one type into a buffer; `n_shards` divides its length."""
        held = list(parameters)
        matrices, vectors = [p for p in held if p.ndim >= 2], [p for p in held if p.ndim < 2]
        self.n_weights = sum(p.numel() for p in held)
        self.n_decaying = _rounded_up(sum(p.numel() for p in matrices), ALIGNMENT)
        n = self.n_decaying + sum(p.numel() for p in vectors)
        n = _rounded_up(n, n_shards * ALIGNMENT)
        dtype, device = held[0].dtype, held[0].device
        self.weights = torch.zeros(n, dtype=dtype, device=device)
        self.gradients = torch.zeros_like(
            self.weights, dtype=torch.promote_types(dtype, torch.float32)
        )
        self._take_over(matrices, start=0)
        self._take_over(vectors, start=self.n_decaying)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return self.n_weights * self.weights.itemsize

    def _take_over(self, parameters: Iterable[nn.Parameter], start: int) -> None:
        for parameter in parameters:
            place = slice(start, start + parameter.numel())
            _move(parameter, self.weights[place])
            _accumulate(parameter, self.gradients[place].view_as(parameter))
            start = place.stop


def _move(parameter: nn.Parameter, view: Tensor) -> None:
    view.copy_(parameter.detach().flatten())
    parameter.data = view.view_as(parameter)


def _accumulate(parameter: nn.Parameter, view: Tensor) -> None:
    """Lets backward passes add a parameter's gradient to `view`."""
    if view.dtype == parameter.dtype:
        parameter.grad = view
        return

    def add(parameter: Tensor) -> None:
        if parameter.grad is not None:
            view.add_(parameter.grad)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
