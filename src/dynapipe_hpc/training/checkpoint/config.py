"""When the state of a run is written, and what is kept of it."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class CheckpointConfig(ConfigTable):
    """The [checkpoint] table.

    Attributes:
        every: Iterations between checkpoints; 0: none before the end.
        last: Whether the state after the last iteration is written. A run that is asked to stop
            writes its state if this or `every` is set.
        keep_last: Newest checkpoints that are kept. While one is written, there is one more.
        keep_every: Checkpoints after a multiple of so many iterations are kept for good. 0: none.
        grace_s: Time from a signal that asks to stop to the end by force, as in Slurm's
            `--signal=USR1@GRACE_S`. A run in which an iteration and a checkpoint take longer is
            ended as soon as that is known. 0: not known.
        timeout_s: Longest time that training waits for a checkpoint; then the job ends, and says
            where every rank was.
    """

    every: int = Field(default=0, ge=0)
    last: bool = True
    keep_last: int = Field(default=2, ge=1)
    keep_every: int = Field(default=0, ge=0)
    grace_s: float = Field(default=0.0, ge=0)
    timeout_s: float = Field(default=3600.0, gt=0)
