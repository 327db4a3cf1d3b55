"""Which samples a run trains on, and how many at a time."""

from typing import Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable


class DataConfig(ConfigTable):
    """The global batches of a run. The [data] table.

    Attributes:
        dataset: Path of the HDF5 dataset that `dynapipe-hpc preprocess` wrote.
        max_tokens: Longest sample, input and target together; longer ones are cut.
        tokens_per_batch: Most real tokens of one global batch, after cutting.
        seed: Of the order in which an epoch visits the samples.
    """

    dataset: str = Field(min_length=1)
    max_tokens: int = Field(ge=1, le=2**24)
    tokens_per_batch: int = Field(ge=1, le=2**40)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)

    @model_validator(mode="after")
    def _any_sample_fits_a_batch(self) -> Self:
        if self.max_tokens > self.tokens_per_batch:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) exceeds tokens_per_batch "
                f"({self.tokens_per_batch}), so that a long sample would fit no batch; "
                "lower max_tokens or raise tokens_per_batch"
            )
        return self
