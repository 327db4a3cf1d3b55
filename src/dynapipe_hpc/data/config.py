"""The [data] table: which samples a run trains on, and how many at a time."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable

LongSamples = Literal["cut_input_end", "cut_input_start", "cut_targets", "drop", "refuse"]


class DataConfig(ConfigTable):
    """The [data] table: the dataset and the global batches of a run.

    Attributes:
        dataset: Path of the HDF5 dataset that `dynapipe-hpc preprocess` wrote.
        max_tokens: Longest sample, input and target together.
        long_samples: Treatment of longer samples. cut_input_end and cut_input_start: the input
            loses its end or its start until the sample fits; samples whose target alone is longer
            are left out. cut_targets: the input loses its end, then the target does, including its
            end-of-sequence token. drop: they are left out. refuse: the run does not start.
        tokens_per_batch: Most real tokens in one global batch, after cutting.
        seed: Seed of the order in which an epoch visits the samples.
        verify: Whether a run reads all samples once, while it trains, and compares them with their
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
                f"({self.tokens_per_batch}), so that a long sample would not fit in any batch; "
                "lower max_tokens or raise tokens_per_batch"
            )
        return self
