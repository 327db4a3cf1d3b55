"""The [checkpoint] table: when checkpoints are written, and which are kept."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class CheckpointConfig(ConfigTable):
    """The [checkpoint] table: when checkpoints are written, and which are kept.

    Attributes:
        every: Number of iterations between checkpoints; 0 writes none before the end.
        last: Whether to write a checkpoint after the last iteration. A run that is asked to stop
            writes one if this or `every` is set.
        keep_last: Number of newest checkpoints to keep; one more while a checkpoint is written.
        keep_every: Interval in iterations: checkpoints at its multiples are kept permanently; 0
            keeps none. It does not cause checkpoints to be written: see `every`.
        keep_best: Whether to write a checkpoint whenever an evaluation finds the lowest loss so
            far, and to keep the newest of these in addition to those of keep_last.
        timeout_s: Longest time in seconds that training waits for a checkpoint; then the job ends
            and reports where every rank was.
    """

    every: int = Field(default=0, ge=0)
    last: bool = True
    keep_last: int = Field(default=2, ge=1)
    keep_every: int = Field(default=0, ge=0)
    keep_best: bool = False
    timeout_s: float = Field(default=3600.0, gt=0)

    @property
    def is_on(self) -> bool:
        """Whether a run writes any checkpoint."""
        return self.every > 0 or self.last or self.keep_best
