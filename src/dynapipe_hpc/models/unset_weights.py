"""Construction of modules whose weights have no values yet."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class UnsetWeights(TorchFunctionMode):
    """Mode in which `torch.empty` makes weights of one type on one device, and none are drawn.

    Unlike construction on the device `meta`, this does not import torch's compiler, which takes
    seconds of processor time at the start of every rank.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._options = {"dtype": dtype, "device": device}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func`, unless it draws initial values."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if func is torch.empty:
            kwargs = kwargs | self._options
        return func(*args, **kwargs)
