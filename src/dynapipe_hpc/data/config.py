"""Which samples a run trains on, and how many at a time."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable

LongSamples = Literal["cut_input_end", "cut_input_start", "cut_targets", "drop", "refuse"]


class DataConfig(ConfigTable):
    """The global batches of a run. The [data] table.

    Attributes:
        dataset: Path of the HDF5 dataset that `dynapipe-hpc preprocess` wrote.
        max_tokens: Longest sample, input and target together.
        long_samples: What becomes of longer ones. cut_input_end and cut_input_start: as much of
            the end or of the start of the input is not used; samples of which the target alone is
            longer are left out. cut_targets: the end of the input, then that of the target is not
            used, its end of sequence included. drop: they are left out. refuse: the run does not
            start.
        tokens_per_batch: Most real tokens of one global batch, after cutting.
        seed: Seed of the order in which an epoch visits the samples.
        verify: Whether a run reads all samples once, beside training, and compares them with their
            checksums.
    """

    dataset: str = Field(min_length=1)
    max_tokens: int = Field(ge=1, le=2**24)
    long_samples: LongSamples = "cut_input_end"
    tokens_per_batch: int = Field(ge=1, le=2**40)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    verify: bool = True

    @model_validator(mode="after")
    def _any_sample_fits_a_batch(self) -> Self:
        if self.max_tokens > self.tokens_per_batch:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) exceeds tokens_per_batch "
                f"({self.tokens_per_batch}), so that a long sample would fit no batch; "
                "lower max_tokens or raise tokens_per_batch"
            )
        return self
