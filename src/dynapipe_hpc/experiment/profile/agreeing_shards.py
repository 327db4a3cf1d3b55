"""Tensor-parallel shards that tell each other when one runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.models.sharding.shards import Shards


class OutOfMemoryError(RuntimeError):
    """A micro-batch is too large for a stack."""


class _ElsewhereError(OutOfMemoryError):
    pass


class AgreeingShards:
    """The shards of a stage; within `fail_together`, none waits for one that ran out of memory.

    There, before every collective operation and at the end, all shards exchange whether they
    continue, and raise an `OutOfMemoryError` if one does not. That takes time and makes the host
    wait for the device, so operations outside do without.
    """

    def __init__(self, shards: Shards, device: torch.device) -> None:
        self._shards = shards
        self._n_failed = torch.zeros(1, device=device)
        self._is_agreeing = False

    @property
    def shard(self) -> int:
        return self._shards.shard

    @property
    def n_shards(self) -> int:
        return self._shards.n_shards

    @property
    def sequence_parallel(self) -> bool:
        return self._shards.sequence_parallel

    def sum_over_shards(self, values: Tensor) -> Tensor:
        self._check_room(values, n_tensors=1)
        return self._shards.sum_over_shards(values)

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        self._check_room(values, n_tensors=1)
        return self._shards.sum_own_over_shards(values)

    def gather_over_shards(self, values: Tensor) -> Tensor:
        self._check_room(values, n_tensors=self.n_shards)
        return self._shards.gather_over_shards(values)

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Block with the same sums on all shards, out of which all run out of memory together."""
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
        """Block without exchanges; out of memory it is a RunError where others may wait."""
        try:
            yield
        except OutOfMemoryError as error:
            if self.n_shards == 1:
                raise
            raise RunError(
                f"a micro-batch that fitted before no longer fits into memory: {error}; free "
                "memory and start again: the profile continues after its last complete mode"
            ) from error

    def _check_room(self, values: Tensor, n_tensors: int) -> None:
        if self._is_agreeing:
            # A shard without memory fails here, before the others wait for it.
            values.new_empty((n_tensors, *values.shape))
            self._check_others()

    def _check_others(self) -> None:
        if self._tell(0):
            raise _ElsewhereError("another shard ran out of memory")

    def _tell(self, n_failed: int) -> float:
        return self._shards.sum_over_shards(self._n_failed.fill_(n_failed)).item()
