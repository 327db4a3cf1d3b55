"""Computing again in the backward pass what the forward pass did not keep."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The result of `function(*inputs)`, of which only the inputs are kept until backward.

    The backward pass calls `function` again, as far as it needs what the forward pass would
    have kept. Models draw no random numbers, so it finds the same bits.
    """
    output: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return output
