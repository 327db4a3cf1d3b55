"""The [planner.cost] table."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.microbatch import Recompute


class AnyCostConfig(ConfigTable):
    """Keys of every variant of the table.

    Attributes:
        recompute: Modes that plans may use: none, selective, full, or several of these, among
            which the planner chooses for each micro-batch.
        online: Whether a run corrects predicted times by those that it measures: iteration k is
            planned with the times of the iterations before k - store.look_ahead. Predictions of
            memory are not corrected.
    """

    recompute: tuple[Literal["none", "selective", "full"], ...] = Field(("none",), min_length=1)
    online: bool = False

    @property
    def recompute_modes(self) -> tuple[Recompute, ...]:
        """The modes of `recompute`, ascending."""
        return tuple(mode for mode in Recompute if mode.text in self.recompute)


class AnalyticTable(AnyCostConfig):
    """An estimate from peak rates, for machines that were not profiled.

    The defaults describe one CPU core that computes in float32 with AdamW.

    Attributes:
        kind: Kind of costs; these are estimated.
        flops_per_ms: Peak rate of a rank, in floating-point operations per ms.
        memory_bytes_per_ms: Bandwidth of a rank's memory.
        launch_ms: Least time of the forward pass of one layer, however small the micro-batch; its
            backward pass takes at least twice that.
        reduction_bytes_per_ms: Rate of all-reduces over replicas or shards.
    """

    kind: Literal["analytic"] = "analytic"
    flops_per_ms: float = Field(default=5e7, ge=1)
    memory_bytes_per_ms: float = Field(default=1e7, ge=1)
    launch_ms: float = Field(default=0.4, gt=0, le=1e6)
    reduction_bytes_per_ms: float = Field(default=1e6, ge=1)


class AnalyticConfig(AnalyticTable):
    """An estimate from peak rates, for a type of numbers and an optimizer.

    Attributes:
        element_bytes: Size of one number of an activation or weight.
        state_factor: Bytes of weights, gradients and optimizer state per byte of weights; None
            means those of AdamW.
    """

    element_bytes: int = Field(default=4, ge=1, le=16)
    state_factor: float | None = Field(default=None, ge=1, le=1000)


class ProfiledConfig(AnyCostConfig):
    """Measurements of the machine, as `dynapipe-hpc profile` writes them.

    Attributes:
        kind: Kind of costs; these are measured.
        path: The cost table (HDF5), or measurements as CSV with NAME_parameters.csv beside
            NAME.csv.
    """

    kind: Literal["profiled"] = "profiled"
    path: Path


CostConfig = Annotated[AnalyticTable | ProfiledConfig, Field(discriminator="kind")]
"""The [planner.cost] table; estimates are for numbers of `training.dtype`."""
