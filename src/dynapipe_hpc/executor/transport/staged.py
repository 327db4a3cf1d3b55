"""Transport and collectives through host memory, for several ranks on one GPU.

NCCL refuses two ranks on one device. This module lets such a job run anyway, for tests: the host
waits for the device in every transfer.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.training.collectives import Collectives, done

CPU = torch.device("cpu")


class StagedTransport:
    """A `Transport` of device tensors over a transport of CPU tensors."""

    def __init__(self, inner: Transport[Tensor], device: torch.device) -> None:
        self._inner = inner
        self._device = device

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        self._inner.start_send(microbatch, payload, peer, tensor.to(CPU))

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        self._inner.wait_send(microbatch, payload)

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        self._inner.start_receive(microbatch, payload, peer, shape, slot=slot)

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits for a tensor and copies it to the device."""
        return self._inner.wait_receive(microbatch, payload).to(self._device, copy=True)

    def clear(self) -> None:
        self._inner.clear()


class StagedCollectives:
    """`Collectives` of device tensors over collectives of CPU tensors."""

    sums_beside_work = False

    def __init__(self, inner: Collectives) -> None:
        self._inner = inner
        self.replica, self.n_replicas = inner.replica, inner.n_replicas
        self.shard, self.n_shards = inner.shard, inner.n_shards
        self.sequence_parallel = inner.sequence_parallel
        self.stage, self.n_stages = inner.stage, inner.n_stages

    def sum_over_replicas(self, values: Tensor) -> None:
        _through_host(values, self._inner.sum_over_replicas)

    def start_sum_over_replicas(self, values: Tensor) -> Callable[[], None]:
        self.sum_over_replicas(values)
        return done

    def sum_share_over_replicas(self, values: Tensor) -> None:
        _through_host(values, self._inner.sum_share_over_replicas)

    def gather_shares(self, values: Tensor) -> None:
        _through_host(values, self._inner.gather_shares)

    def sum_over_shards(self, values: Tensor) -> Tensor:
        return self._inner.sum_over_shards(values.to(CPU)).to(values.device)

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        return self._inner.sum_own_over_shards(values.to(CPU)).to(values.device)

    def gather_over_shards(self, values: Tensor) -> Tensor:
        return self._inner.gather_over_shards(values.to(CPU)).to(values.device)

    def sum_within_replica(self, values: Tensor) -> None:
        _through_host(values, self._inner.sum_within_replica)

    def sum_over_copies(self, values: Tensor, stages: Sequence[int]) -> None:
        _through_host(values, lambda held: self._inner.sum_over_copies(held, stages))

    def copy_from_first(self, values: Tensor, stages: Sequence[int]) -> None:
        _through_host(values, lambda held: self._inner.copy_from_first(held, stages))


def _through_host(values: Tensor, change: Callable[[Tensor], None]) -> None:
    held = values.to(CPU)
    change(held)
    values.copy_(held)
