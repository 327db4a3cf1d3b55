"""Latency and bandwidth between the ranks of neighbouring stages, measured."""

import time
from statistics import median

import torch
from torch import Tensor

from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.rank.devices import wait_for
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.plan.instruction import Payload

# The small tensor shows latency, the large one bandwidth.
SMALL_NUMBERS, LARGE_NUMBERS = 16, 1 << 20
BOUNCES = 15


def measure_link(
    job: Job,
    same_shard: Job,
    transport: Transport[Tensor],
    dtype: torch.dtype,
    device: torch.device,
    full_duplex: bool,
) -> Link | None:
    """Bounces tensors between pairs of ranks, all pairs at once; all ranks together.

    Args:
        job: The ranks.
        same_shard: The ranks of this rank's shard, which are paired; if their number is odd, the
            last has no peer.
        transport: Transport between the ranks of `same_shard`.
        dtype: Type of the tensors.
        device: Device of the tensors.
        full_duplex: Whether the link is full duplex; copied, not measured.

    Returns:
        The median over pairs on the first rank, None elsewhere; None if there are no pairs.
    """
    peer = same_shard.rank ^ 1
    small, large = (
        torch.zeros(n, dtype=dtype, device=device) for n in (SMALL_NUMBERS, LARGE_NUMBERS)
    )
    times = None
    if peer < same_shard.size:
        times = [bounce_ms(transport, same_shard.rank, peer, tensor) for tensor in (small, large)]
    pairs = [times for times in job.gather(times) if times is not None]
    if not pairs:
        return None
    latency_ms, large_ms = (median(column) for column in zip(*pairs, strict=True))
    transfer_ms = max(large_ms - latency_ms, 1e-6)
    return Link(
        latency_ms=latency_ms, bytes_per_ms=large.nbytes / transfer_ms, full_duplex=full_duplex
    )


def bounce_ms(transport: Transport[Tensor], rank: int, peer: int, tensor: Tensor) -> float:
    """Time of one transfer: half a round trip. Both sides start the transfers in the same order."""
    halves = []
    for i in range(BOUNCES):
        start_s = time.perf_counter()
        if rank < peer:
            transport.start_send(i, Payload.ACTIVATION, peer, tensor)
        transport.start_receive(i, Payload.ACTIVATION, peer, tuple(tensor.shape), slot=0)
        transport.wait_receive(i, Payload.ACTIVATION)
        if rank > peer:
            transport.start_send(i, Payload.ACTIVATION, peer, tensor)
        transport.wait_send(i, Payload.ACTIVATION)
        wait_for(tensor.device)
        halves.append(1e3 * (time.perf_counter() - start_s) / 2)
    return median(halves)
