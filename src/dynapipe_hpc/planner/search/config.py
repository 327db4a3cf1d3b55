"""The [planner.search] table: how long a plan is improved."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class SearchConfig(ConfigTable):
    """Local search on the plan that rules have found.

    Attributes:
        moves: Random changes to try; 0 leaves the plan as it is. A count and not a time, so
            that the same samples give the same plan on every machine.
        seed: Of the random changes.
    """

    moves: int = Field(default=5_000, ge=0)
    seed: int = Field(default=0, ge=0)
