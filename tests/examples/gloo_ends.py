"""Two ends of a `TorchTransport` over gloo in one process."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import ProcessGroupGloo

from dynapipe_hpc.executor.transport.torch_distributed import TorchTransport
from dynapipe_hpc.plan.instruction import Payload

CPU = torch.device("cpu")


def gloo_ends() -> list[TorchTransport]:
    """Ranks 0 and 1, connected for tensors of float32."""
    store = HashStore()  # shared by threads: each end waits for the other while it is made
    with ThreadPoolExecutor(2) as ends:
        return list(ends.map(lambda rank: _end(store, rank), range(2)))


def _end(store: Store, rank: int) -> TorchTransport:
    groups = {payload: _group(PrefixStore(payload.name, store), rank) for payload in Payload}
    return TorchTransport(groups, CPU, torch.float32)


def _group(store: Store, rank: int) -> ProcessGroup:
    """One end of two, without the one default group that a process can have."""
    group = ProcessGroup(store, rank, 2)
    gloo = ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
    group._register_backend(CPU, ProcessGroup.BackendType.GLOO, gloo)
    return group
