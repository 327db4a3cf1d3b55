"""The [cluster] table: the ranks of a job and their connections."""

from typing import Literal, Self

from pydantic import ByteSize, Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable


class Link(ConfigTable):
    """A connection between the ranks of neighbouring stages.

    A transfer of n bytes takes `latency_ms + n / bytes_per_ms`. If a cost table holds a measured
    link, planning uses it instead of the configured one.

    Attributes:
        latency_ms: Time of an empty transfer, in ms.
        bytes_per_ms: Bandwidth in bytes per ms; 1e6 is 1 GB/s, inf means that size costs no time.
        full_duplex: Whether a rank can send to both neighbours at the same time. If not, a send to
            one waits for a send to the other, as in the paper's planner.
    """

    latency_ms: float = Field(default=0.02, ge=0, le=1e6)
    bytes_per_ms: float = Field(
        default=2e6, ge=1, allow_inf_nan=True, json_schema_extra={"infinite": True}
    )
    full_duplex: bool = True


class Cluster(ConfigTable):
    """The [cluster] table: data-parallel replicas of pipeline stages, cut into tensor shards.

    Every shard has a rank. All shards of a stage execute one plan, so plans number ranks as if
    there were one shard.

    Attributes:
        n_replicas: Number of data-parallel copies of the model, each with its share of a batch.
        n_stages: Number of pipeline stages into which the layers of one copy are divided.
        n_shards: Number of ranks over which every layer of a stage is cut (tensor parallel).
        sequence_parallel: Whether the shards of a stage also divide the tokens where layers are not
            cut: in norms and in the residual stream (sequence parallel).
        shard_sums: Type in which shards add up 16-bit tensors: "float32", or "dtype" for the
            tensors' own, which halves the traffic. Ranks on CPUs always add in float32.
        device_memory_bytes: Memory that one rank may use for model and activations, such as "76GB".
            On a GPU, a run reserves this divided by 0.93, the excess being for fragments and
            transfer buffers, and ends with an error if less is free.
        zero_stage: ZeRO stage, that is, what replicas divide among them instead of keeping copies:
            0 for nothing, 1 for the optimizer's state (ZeRO-1).
        link: Connection between neighbouring stages, unless a cost table holds a measured one.
    """

    n_replicas: int = Field(default=1, ge=1, le=2**20)
    n_stages: int = Field(default=1, ge=1, le=2**20)
    n_shards: int = Field(default=1, ge=1, le=2**20)
    sequence_parallel: bool = False
    shard_sums: Literal["float32", "dtype"] = "float32"
    device_memory_bytes: ByteSize = Field(ge=1, le=2**50)
    zero_stage: Literal[0, 1] = 0
    link: Link = Link()

    @property
    def n_ranks(self) -> int:
        """Number of ranks of the job."""
        return self.n_plans * self.n_shards

    @property
    def n_stream_shards(self) -> int:
        """Number of shards over which the residual stream of a stage is spread."""
        return self.n_shards if self.sequence_parallel else 1

    @property
    def n_plans(self) -> int:
        """Number of plans of an iteration: one per replica and stage, for all its shards."""
        return self.n_replicas * self.n_stages

    def rank_of(self, replica: int, stage: int, shard: int = 0) -> int:
        """The rank of a shard of a replica's stage; numbered by replica, then stage, then shard."""
        return (replica * self.n_stages + stage) * self.n_shards + shard

    def replica_of(self, rank: int) -> int:
        """The replica that a rank belongs to."""
        return self.plan_of(rank) // self.n_stages

    def stage_of(self, rank: int) -> int:
        """The stage that a rank belongs to."""
        return self.plan_of(rank) % self.n_stages

    def shard_of(self, rank: int) -> int:
        """The shard that a rank holds."""
        return rank % self.n_shards

    def plan_of(self, rank: int) -> int:
        """The plan that a rank executes: its index among the ranks with the same shard number."""
        return rank // self.n_shards

    @model_validator(mode="after")
    def _check_max_ranks(self) -> Self:
        if self.n_plans > 65536:
            raise ValueError(
                f"n_replicas x n_stages is {self.n_plans}, but plans can number only 65536 ranks; "
                "lower one of them"
            )
        return self
