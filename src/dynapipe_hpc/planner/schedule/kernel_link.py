"""The connection between neighbouring stages, as the kernels take it."""

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link


def kernel_link(link: Link) -> _kernels.Link:
    """The same link as an argument for kernels."""
    return _kernels.Link(link.latency_ms, link.bytes_per_ms, link.full_duplex)
