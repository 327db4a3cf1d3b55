"""Protocol of point-to-point transfers between the ranks of a pipeline."""

from typing import Protocol

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.executor.stage import Tensor
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload


class TransportError(RunError):
    """A transfer cannot complete: ranks disagree, or a peer is gone."""


class Place:
    """Place of a rank in a cluster and sizes of its groups: attributes of `Collectives`."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self.replica, self.n_replicas = cluster.replica_of(rank), cluster.n_replicas
        self.stage, self.n_stages = cluster.stage_of(rank), cluster.n_stages
        self.shard, self.n_shards = cluster.shard_of(rank), cluster.n_shards
        self.sequence_parallel = cluster.sequence_parallel


class Transport(Protocol[Tensor]):
    """Transport: point-to-point transfers that are started and waited for separately.

    Contract: transfers between a pair of ranks match in the order in which each side starts them.
    A started transfer completes once the other side has made its matching start. Shapes are not
    sent: both sides know them from the plan.
    """

    def start_send(self, microbatch: int, payload: Payload, peer: int, tensor: Tensor) -> None:
        """Starts sending a contiguous tensor, which must not change until `wait_send`.

        The transport keeps the tensor as long as it needs it.
        """
        ...

    def wait_send(self, microbatch: int, payload: Payload) -> None:
        """Waits until a send no longer needs its tensor."""
        ...

    def start_receive(
        self, microbatch: int, payload: Payload, peer: int, shape: tuple[int, ...], *, slot: int
    ) -> None:
        """Starts receiving into receive buffer `slot`, which is grown to `shape` if needed."""
        ...

    def wait_receive(self, microbatch: int, payload: Payload) -> Tensor:
        """Waits for a tensor, which stays valid until the next receive into its slot starts."""
        ...

    def clear(self) -> None:
        """Frees all buffers; called after each plan, when all transfers have been waited for."""
        ...
