"""The weights of a module in one buffer, and their gradients in another."""

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from dynapipe_hpc.models.split import splits_of

# Numbers: no vector of a processor lies across two shares, so bits do not depend on sharing.
ALIGNMENT = 64


class FlatParameters:
    """Two contiguous buffers, of which every weight and every gradient is a view.

    So weights are updated, and gradients are added up over replicas, measured, scaled and
    cleared, in one call each. What decays comes first, then the rest, then zeros that fill up
    equal shares; weights that all shards of a stage hold are next to each other.

    Matrices decay; vectors do not, and neither do relative biases, as in the trainer of
    `transformers`.

    Attributes:
        weights: Shape (n,), of the type of the parameters.
        gradients: Shape (n,), of the same type, or float32 if that has 16 bits.
        n_decaying: Numbers up to the end of the weights that decay.
        n_weights: Numbers that belong to a parameter.
        whole: Where the weights are that all shards hold.
        gradient_of: By parameter, the view of its gradient, in its shape.
    """

    def __init__(
        self, module: nn.Module, n_shares: int = 1, left_out: Collection[str] = ()
    ) -> None:
        """Moves parameters of one type into a buffer.

        Args:
            module: Holds the parameters.
            n_shares: What is to divide the length of the buffer.
            left_out: Names of parameters that stay where they are.
        """
        cut = splits_of(module).keys()
        held = {name: p for name, p in module.named_parameters() if name not in left_out}
        cut_decaying, cut_rest = _by_decay({n: p for n, p in held.items() if n in cut})
        decaying, rest = _by_decay({n: p for n, p in held.items() if n not in cut})
        self.n_weights = _count(held.values())
        self.n_decaying = _rounded_up(_count(cut_decaying + decaying), ALIGNMENT)
        self.whole = slice(_count(cut_decaying), self.n_decaying + _count(rest))
        n = _rounded_up(self.whole.stop + _count(cut_rest), n_shares * ALIGNMENT)
        first = next(iter(held.values()))
        self.weights = torch.zeros(n, dtype=first.dtype, device=first.device)
        wide = torch.promote_types(first.dtype, torch.float32)
        self.gradients = torch.zeros_like(self.weights, dtype=wide)
        self.gradient_of: dict[nn.Parameter, Tensor] = {}
        self._take_over(cut_decaying + decaying, start=0)
        self._take_over(rest + cut_rest, start=self.n_decaying)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return self.n_weights * self.weights.itemsize

    def _take_over(self, parameters: Iterable[nn.Parameter], start: int) -> None:
        for parameter in parameters:
            place = slice(start, start + parameter.numel())
            _move(parameter, self.weights[place])
            self.gradient_of[parameter] = self.gradients[place].view_as(parameter)
            _accumulate(parameter, self.gradient_of[parameter])
            start = place.stop


def _by_decay(
    parameters: Mapping[str, nn.Parameter],
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that decay, and those that do not."""
    decaying = {name for name, p in parameters.items() if p.ndim >= 2 and "bias" not in name}
    return (
        [p for name, p in parameters.items() if name in decaying],
        [p for name, p in parameters.items() if name not in decaying],
    )


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


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
