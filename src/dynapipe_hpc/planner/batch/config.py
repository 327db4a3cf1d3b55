"""The [planner.batch] table: how samples form micro-batches."""

from typing import Annotated, Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable

Share = Annotated[float, Field(gt=0, le=1)]
RecomputeChoice = Literal["per_microbatch", "per_iteration", "first_feasible"]


class DynamicConfig(ConfigTable):
    """Micro-batches that finish soonest, found anew for every iteration.

    Attributes:
        rule: Chooses this table.
        memory_shares: Of a stage's activation memory, what one micro-batch may keep; of the
            plans made with each, the fastest is taken. Empty for 1 / n_stages and its doubles
            up to 1.
        recompute_choice: What of planner.cost.recompute micro-batches use: per_microbatch, each
            its own; as baselines per_iteration, all the one that is fastest, as in the paper, and
            first_feasible, all the first one with a plan within memory, as in its artifact.
    """

    rule: Literal["dynamic"] = "dynamic"
    memory_shares: tuple[Share, ...] = ()
    recompute_choice: RecomputeChoice = "per_microbatch"
