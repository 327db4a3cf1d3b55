"""When the state of a run is written, and what is kept of it."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class CheckpointConfig(ConfigTable):
    """The [checkpoint] table.

    Attributes:
        every: Iterations between checkpoints; the last iteration has one, too. 0: none at all.
        keep_last: Newest checkpoints that are kept. While one is written, there is one more.
        keep_every: Checkpoints after a multiple of so many iterations are kept for good. 0: none.
    """

    every: int = Field(default=0, ge=0)
    keep_last: int = Field(default=2, ge=1)
    keep_every: int = Field(default=0, ge=0)
