"""Account of the memory of tensors while a block runs."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Account of the tensors that operations make inside the block, until they are freed.

    A storage counts once, however many tensors share it. Tensors from before the block and memory
    inside kernels do not count. It is slow: use it to measure memory, not time.

    `live_bytes`: Size of the tensors alive now, in bytes. `peak_bytes`: Peak since the last
    `restart`, in bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: set[int] = set()
        self.live_bytes = 0
        self.peak_bytes = 0

    def restart(self) -> None:
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for tensor in _tensors_in((args, kwargs)):
            self._meet(tensor.untyped_storage(), n_bytes=0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors_in(result):
            storage = tensor.untyped_storage()
            self._meet(storage, storage.nbytes())
        return result

    def _meet(self, storage: UntypedStorage, n_bytes: int) -> None:
        address = storage._cdata
        if address in self._known:
            return
        self._known.add(address)
        self.live_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._part, address, n_bytes)

    def _part(self, address: int, n_bytes: int) -> None:
        self._known.discard(address)
        self.live_bytes -= n_bytes


def _tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
