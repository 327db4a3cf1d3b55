"""Shards of which one that runs out of memory tells the others."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.models.shards import Shards


class OutOfMemoryError(RuntimeError):
    """A micro-batch was too large for a stack."""


class _ElsewhereError(OutOfMemoryError):
    """It was so on another shard, which has told this one."""


class AgreeingShards:
    """The shards of a stage; within `agreeing`, none waits for one that has given up.

    There all say before every sum, and at the end, whether they go on. That takes time and makes
    the host wait for the device, so sums outside of it do without.
    """

    def __init__(self, shards: Shards, device: torch.device) -> None:
        """Wraps `shards`, whose tensors are on `device`."""
        self._shards = shards
        self._n_failed = torch.zeros(1, device=device)
        self._is_agreeing = False

    @property
    def shard(self) -> int:
        """The shard that this rank holds."""
        return self._shards.shard

    @property
    def n_shards(self) -> int:
        """Number of shards of a stage."""
        return self._shards.n_shards

    def sum_over_shards(self, values: Tensor) -> Tensor:
        """The sum of a tensor over shards.

        Raises:
            OutOfMemoryError: Another shard has given up.
        """
        if self._is_agreeing:
            # Whoever has no room for the sum finds out before the others wait for it.
            torch.empty_like(values)
            self._check_others()
        return self._shards.sum_over_shards(values)

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Runs a block on all shards, which add up alike.

        Raises:
            OutOfMemoryError: It left the block on this shard or another.
        """
        self._is_agreeing = True
        try:
            yield
            self._check_others()
        except _ElsewhereError:
            raise
        except OutOfMemoryError:
            self._tell(1)
            raise
        finally:
            self._is_agreeing = False

    @contextmanager
    def not_waiting(self) -> Iterator[None]:
        """Runs a block whose sums take no longer than they must.

        Raises:
            OutOfMemoryError: It left the block, and there are no other shards.
            RunError: It left the block.
        """
        try:
            yield
        except OutOfMemoryError as error:
            if self.n_shards == 1:
                raise
            raise RunError(
                f"a micro-batch that had fitted does not fit into memory any more: {error}; free "
                "memory and start again, which goes on from here"
            ) from error

    def _check_others(self) -> None:
        if self._tell(0):
            raise _ElsewhereError("another shard ran out of memory")

    def _tell(self, n_failed: int) -> float:
        return self._shards.sum_over_shards(self._n_failed.fill_(n_failed)).item()
