"""The ranks of a job and what connects them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.byte_size import Bytes
from dynapipe_hpc.data.config_table import ConfigTable


class Link(ConfigTable):
    """A connection between the ranks of neighbouring stages.

    A transfer of n bytes takes `latency_ms + n / bytes_per_ms`. Plans that are made with a cost
    table take the link that was measured into it, if there is one, instead of a configured one.

    Attributes:
        latency_ms: Time of an empty transfer.
        bytes_per_ms: Bandwidth; 1e6 is 1 GB/s, inf a transfer that takes no longer for its size.
        full_duplex: Whether a rank sends to both neighbours at the same time. If not, its
            transfers in the two directions wait for each other, as in the paper's planner.
    """

    latency_ms: float = Field(default=0.02, ge=0, le=1e6)
    bytes_per_ms: float = Field(default=2e6, ge=1, allow_inf_nan=True)
    full_duplex: bool = True


class Cluster(ConfigTable):
    """Replicas of a pipeline of stages, each cut into shards; a rank per shard. [cluster] table.

    All shards of a stage execute one plan, so plans number ranks as if there were one shard.

    Attributes:
        n_replicas: Copies of the model, each working on its share of every batch.
        n_stages: Parts into which the layers of one copy are divided.
        n_shards: Ranks over which every layer of a stage is cut (tensor parallelism).
        device_memory_bytes: Memory that one rank may use for model and activations, such as "80GB".
        zero_stage: What replicas share out instead of each keeping all of it: 0 nothing, 1 the
            state of the optimizer (ZeRO-1).
        link: Connection between neighbouring stages; a measured one of a cost table wins.
    """

    n_replicas: int = Field(default=1, ge=1, le=2**20)
    n_stages: int = Field(default=1, ge=1, le=2**20)
    n_shards: int = Field(default=1, ge=1, le=2**20)
    device_memory_bytes: Bytes = Field(gt=0, le=2**50)
    zero_stage: Literal[0, 1] = 0
    link: Link = Link()

    @property
    def n_ranks(self) -> int:
        """Ranks of the whole job."""
        return self.n_plans * self.n_shards

    @property
    def n_plans(self) -> int:
        """Plans of an iteration: one per stage of every replica, for all its shards."""
        return self.n_replicas * self.n_stages

    def rank_of(self, replica: int, stage: int, shard: int = 0) -> int:
        """The rank that holds a shard of a replica's stage; shards, then stages are neighbours."""
        return (replica * self.n_stages + stage) * self.n_shards + shard

    def replica_of(self, rank: int) -> int:
        """The replica that a rank belongs to."""
        return self.plan_of(rank) // self.n_stages

    def stage_of(self, rank: int) -> int:
        """The stage that a rank holds a shard of."""
        return self.plan_of(rank) % self.n_stages

    def shard_of(self, rank: int) -> int:
        """The shard that a rank holds."""
        return rank % self.n_shards

    def plan_of(self, rank: int) -> int:
        """The plan that a rank executes: its number among the ranks of its shard."""
        return rank // self.n_shards

    @model_validator(mode="after")
    def _ranks_fit_a_plan(self) -> Self:
        if self.n_plans > 65536:
            raise ValueError(
                f"n_replicas x n_stages is {self.n_plans}; a plan numbers at most 65536 ranks"
            )
        return self
