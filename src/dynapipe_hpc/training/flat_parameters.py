"""Flat buffers: one with all weights of a module, and one with their gradients."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.deferred_weights import add_up_in
from dynapipe_hpc.models.sharding.shards import WHOLE, Split, splits_of

# In numbers. No vector register spans two shares, so results do not depend on the division.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class FlatView:
    """Location of a weight of this rank in the flat buffer."""

    name: str
    start: int
    shape: torch.Size
    split: Split


@dataclass(frozen=True, slots=True)
class Segment:
    """Numbers that belong to consecutive weights in `FlatParameters`."""

    start: int  # index of the first of these weights
    values: Tensor  # numbers, shape (n,), not a copy


FlatState = Mapping[str, Segment]
"""State by kind, with a number per weight."""


class FlatParameters:
    """Flat buffers, of which a module's weights and gradients are views.

    One call updates all weights; others sum, measure, scale or clear all gradients. Weights that
    decay come first (matrices, as in the trainer of `transformers`), then all others, then zeros
    that make shares equal. Weights that all shards of a stage hold are contiguous.

    `weights`, `gradients`: Shape (n,), of the type of the parameters; gradients of at least 32
    bits. `n_decaying`: Index of the end of the weights that decay, rounded up to `ALIGNMENT`.
    `views`: Locations of the weights, in the order of the module.
    """

    def __init__(
        self, module: nn.Module, n_shares: int = 1, left_out: Collection[str] = ()
    ) -> None:
        """Moves trained parameters of one type into a buffer; frozen ones stay where they are."""
        cut = splits_of(module)
        held = {
            name: p
            for name, p in module.named_parameters()
            if p.requires_grad and name not in left_out
        }
        matrices = _matrices(module)
        cut_decaying, cut_rest = _by_decay({n: p for n, p in held.items() if n in cut}, matrices)
        decaying, rest = _by_decay({n: p for n, p in held.items() if n not in cut}, matrices)
        self.n_weights = _count(held.values())
        self.n_decaying = _rounded_up(_count(cut_decaying + decaying), ALIGNMENT)
        self.unsplit = slice(_count(cut_decaying), self.n_decaying + _count(rest))
        n = _rounded_up(max(1, self.unsplit.stop + _count(cut_rest)), n_shares * ALIGNMENT)
        first = next(module.parameters())
        self.weights = torch.zeros(n, dtype=first.dtype, device=first.device)
        wide = torch.promote_types(first.dtype, torch.float32)
        self.gradients = torch.zeros_like(self.weights, dtype=wide)
        self.gradient_of: dict[nn.Parameter, Tensor] = {}
        self._take_over(cut_decaying + decaying, start=0)
        self._take_over(rest + cut_rest, start=self.n_decaying)
        splits = {name: split for name, split in cut.items() if split.n_shards > 1}
        self.views = [
            FlatView(name, int(p.storage_offset()), p.shape, splits.get(name, WHOLE))
            for name, p in held.items()
        ]

    @property
    def weight_bytes(self) -> int:
        """Size of the weights in bytes."""
        return self.n_weights * self.weights.itemsize

    def _take_over(self, parameters: Iterable[nn.Parameter], start: int) -> None:
        for parameter in parameters:
            extent = slice(start, start + parameter.numel())
            _move(parameter, self.weights[extent])
            self.gradient_of[parameter] = self.gradients[extent].view_as(parameter)
            _accumulate(parameter, self.gradient_of[parameter])
            start = extent.stop


def _matrices(module: nn.Module) -> set[str]:
    """Names of the parameters that decay; norms do not, even if they have two axes (of heads)."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, each in module.named_modules()
        if "norm" not in type(each).__name__.lower()
        for name, p in each.named_parameters(recurse=False)
        if p.ndim >= 2 and "bias" not in f"{path}.{name}"
    }


def _by_decay(
    parameters: Mapping[str, nn.Parameter], matrices: Collection[str]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    return (
        [p for name, p in parameters.items() if name in matrices],
        [p for name, p in parameters.items() if name not in matrices],
    )


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _move(parameter: nn.Parameter, view: Tensor) -> None:
    view.copy_(parameter.detach().flatten())
    parameter.data = view.view_as(parameter)


def _accumulate(parameter: nn.Parameter, view: Tensor) -> None:
    if view.dtype == parameter.dtype:
        parameter.grad = view
        return

    add_up_in(parameter, view)

    def add(parameter: Tensor) -> None:
        if parameter.grad is not None:
            view.add_(parameter.grad)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
