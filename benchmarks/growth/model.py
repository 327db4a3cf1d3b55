"""A model of what a job of any size costs, from counts of calls and from times of single calls."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Row = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Network:
    """Times of single accesses on a cluster.

    Attributes:
        near_us: Latency between ranks of a host, through shared memory.
        far_us: Latency of a message between hosts, in one direction.
        bytes_per_us: Bandwidth of a host's network card.
        call_us: Time of a call from Python, without waiting.
    """

    near_us: float
    far_us: float
    bytes_per_us: float
    call_us: float


CLUSTER = Network(near_us=0.5, far_us=1.2, bytes_per_us=24_000, call_us=5.0)
"""Nodes with eight GPUs and one card of InfiniBand HDR (200 Gb/s).

Source:
    near_us and call_us: an access and its flush to shared memory, with Open MPI on the machine of
    this benchmark. far_us and bytes_per_us: "HBv3-series virtual machine performance", Microsoft
    Learn (1.2 us; 192 Gb/s).
"""


def fit(n_ranks: Sequence[int], n_hosts: Sequence[int], counts: Sequence[float]) -> list[float]:
    """Least-squares coefficients of a count: constant, per host, and per rank."""
    terms = np.stack([np.ones(len(counts)), np.asarray(n_hosts), np.asarray(n_ranks)], axis=1)
    found, *_ = np.linalg.lstsq(terms, np.asarray(counts, float), rcond=None)
    return [round(float(x), 3) + 0.0 for x in found]


def at(coefficients: Sequence[float], n_ranks: int, n_hosts: int) -> float:
    """The count of a job, from what `fit` has found."""
    constant, per_host, per_rank = coefficients
    return constant + per_host * n_hosts + per_rank * n_ranks


def times_us(
    counts: Mapping[str, Row], n_ranks: int, n_hosts: int, plan_bytes: int, network: Network
) -> Mapping[str, float]:
    """Times that the counts of a job cost, if every one-sided access is waited for.

    Args:
        counts: Number of calls of the rank that makes most, by step and kind.
        n_ranks: Number of ranks.
        n_hosts: Number of hosts.
        plan_bytes: Size of one plan.
        network: Times of single accesses.
    """
    per_host = n_ranks / n_hosts
    near_steps, far_steps = math.log2(max(per_host, 1)), math.log2(n_hosts)
    # Up a tree and down again within a host; recursive doubling between hosts.
    all_reduce = 2 * near_steps * network.near_us + far_steps * network.far_us + network.call_us
    access = 2 * network.far_us + network.call_us
    plan, take = counts["plan"], counts["take"]
    sent = n_ranks * plan_bytes * (n_hosts - 1) / n_hosts
    return {
        "planner, per iteration it plans": plan["one_sided"] * access
        + sent / network.bytes_per_us
        + n_ranks * network.call_us,
        "rank, per iteration: all-reduces": counts["agree"]["collectives"] * all_reduce,
        "rank, per iteration: one-sided": take["one_sided"] * access,
    }
