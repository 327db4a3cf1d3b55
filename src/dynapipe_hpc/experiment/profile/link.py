"""Latency and bandwidth between the ranks of neighbouring stages, measured."""

from statistics import median
from typing import Any

import torch
from torch import Tensor

from dynapipe_hpc.executor.clock import Clock
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.rank.channels import Channels
from dynapipe_hpc.experiment.rank.devices import clock_of
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.plan.instruction import Payload

# The small tensor shows latency, the large one bandwidth. Between GPUs, a transfer of a few
# megabytes takes less time than starting it.
SMALL_NUMBERS = 16
LARGE_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 25}
# Round trips in a row, which a GPU makes without its host.
ROUND_TRIPS, REPETITIONS = 4, 5


def measure_link(
    job: Job, channels: Channels, dtype: torch.dtype, device: torch.device, *, full_duplex: bool
) -> Link | None:
    """Bounces tensors between neighbouring stages, all pairs at once; all ranks together.

    Args:
        job: The ranks.
        channels: Connections of this rank.
        dtype: Type of the tensors.
        device: Device of the tensors.
        full_duplex: Whether the link is full duplex; copied, not measured.

    Returns:
        The median over pairs on the first rank, None elsewhere; None if there is one stage.
    """
    collectives, transport = channels.collectives, channels.transport
    rank = collectives.replica * collectives.n_stages + collectives.stage
    peer = paired_rank(rank, collectives.n_stages)
    clock = clock_of(device)
    small, large = (
        torch.zeros(n, dtype=dtype, device=device)
        for n in (SMALL_NUMBERS, LARGE_NUMBERS[device.type])
    )
    times = None
    if peer is not None:
        times = [
            transfer_ms(transport, rank, peer, tensor, clock=clock) for tensor in (small, large)
        ]
    transport.clear()
    pairs = [times for times in job.gather(times) if times is not None]
    if not pairs:
        return None
    latency_ms, large_ms = (median(column) for column in zip(*pairs, strict=True))
    bandwidth_ms = max(large_ms - latency_ms, 1e-6)
    return Link(
        latency_ms=latency_ms, bytes_per_ms=large.nbytes / bandwidth_ms, full_duplex=full_duplex
    )


def paired_rank(rank: int, n_stages: int) -> int | None:
    """The rank of the neighbouring stage that forms a pair with `rank`, both as plans number them.

    Stages 0 and 1, 2 and 3, and so on of each replica are pairs, since only neighbouring stages are
    connected. The last of an odd number of stages has no peer: None.
    """
    stage = rank % n_stages
    peer_stage = stage ^ 1
    return rank - stage + peer_stage if peer_stage < n_stages else None


def transfer_ms(
    transport: Transport[Tensor], rank: int, peer: int, tensor: Tensor, *, clock: Clock[Any]
) -> float:
    """Time of one transfer: half of a round trip, of several in a row. Peers call it together.

    Activations go to the higher rank and gradients to the lower one, as in a plan.
    """
    _bounce(transport, rank, peer, tensor)  # warms up
    times = []
    for _ in range(REPETITIONS):
        start = clock.now()
        for _ in range(ROUND_TRIPS):
            _bounce(transport, rank, peer, tensor)
        times.append(clock.ms_between(start, clock.now()) / (2 * ROUND_TRIPS))
    return median(times)


def _bounce(transport: Transport[Tensor], rank: int, peer: int, tensor: Tensor) -> None:
    """One round trip, begun by the lower rank."""
    out, back = Payload.ACTIVATION, Payload.GRADIENT
    if rank > peer:
        out, back = back, out
    if rank < peer:
        transport.start_send(0, out, peer, tensor)
    transport.start_receive(0, back, peer, tuple(tensor.shape), slot=0)
    transport.wait_receive(0, back)
    if rank > peer:
        transport.start_send(0, out, peer, tensor)
    transport.wait_send(0, out)
