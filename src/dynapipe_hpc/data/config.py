"""The [data] table: which samples a run trains on, and how many at a time."""

from pathlib import PurePath
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable

LossOn = Literal["marked", "targets", "all"]
LongSamples = Literal[
    "cut_input", "cut_input_end", "cut_input_start", "cut_targets", "drop", "refuse"
]


class MixedDataset(ConfigTable):
    """A [[data.mixture]] table: one of several datasets that samples are drawn from.

    Attributes:
        dataset: Path of the HDF5 dataset.
        name: Name of the dataset, and prefix of the names of its tasks; by default the name of its
            file without the suffix.
        weight: Rate at which samples are drawn from the dataset, relative to the other weights.
            Either all datasets have a weight, or none; without weights, rates follow from sizes.
        epochs: Number of epochs after which the dataset is no longer drawn from; None for no limit.
    """

    dataset: str = Field(min_length=1)
    name: str = Field(default="", min_length=1, max_length=200)
    weight: float | None = Field(default=None, gt=0, le=1e9)
    epochs: int | None = Field(default=None, ge=1, le=10**6)

    @model_validator(mode="before")
    @classmethod
    def _fill_name(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(path := table.get("dataset"), str):
            return {"name": PurePath(path).stem, **table}
        return table


class LengthsConfig(ConfigTable):
    """The [data.lengths] table: drawn lengths of samples of many tasks, to plan without text.

    See `lengths_file` for their distribution.

    Attributes:
        n_samples: Number of samples.
        seed: Seed from which the lengths are drawn.
    """

    n_samples: int = Field(default=100_000, ge=1, le=10**7)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)


class DataConfig(ConfigTable):
    """The [data] table: the dataset, or a mixture of several, and the global batches of a run.

    Attributes:
        dataset: Path of the HDF5 dataset that `dynapipe-hpc preprocess` wrote; None for a mixture.
        mixture: Datasets to draw samples from, where there are several: [[data.mixture]] tables.
        lengths: Random sample lengths, in place of a dataset, for simulations.
        mixture_cap: Where rates follow from sizes, a larger dataset counts as having this number of
            samples; None for no limit.
        mixture_temperature: Temperature of rates that follow from sizes (default 1). Rates are
            proportional to size ** (1 / temperature): nearly equal if the temperature is high.
        max_tokens: Maximum length of a sample, input and target together; see long_samples.
        long_samples: Treatment of samples longer than max_tokens. cut_input: a conversation loses
            its first turns until the rest fits (and the start of its last question, if that is too
            long), a preference pair loses the start of its prompt, any other sample loses the end
            of its input. cut_input_end, cut_input_start: the input loses its end, or its start. All
            three leave out samples whose target alone exceeds max_tokens. cut_targets: the end of
            the input is cut (of a preference pair, the start of the prompt), then the end of the
            target, including the end-of-sequence token. drop: left out. refuse: the run does not
            start.
        loss_on: Tokens whose prediction counts in the loss. marked: the tokens that the dataset
            marks, such as every assistant turn of a conversation; if it marks none in a sample, the
            target. targets: the target, which in a conversation begins with the last assistant
            turn. all: input and target. A t5 predicts only targets.
        tokens_per_batch: Maximum tokens in one global batch, after cutting and without padding.
        seed: Seed of the order in which an epoch visits the samples.
        check_tokenizer: Whether datasets must have been made with the tokenizer of the model that
            model.init_from names.
    """

    dataset: str | None = Field(default=None, min_length=1)
    mixture: tuple[MixedDataset, ...] | None = Field(default=None, min_length=1)
    lengths: LengthsConfig | None = None
    mixture_cap: int | None = Field(default=None, ge=1)
    mixture_temperature: float | None = Field(default=None, ge=1, le=1e6)
    max_tokens: int = Field(ge=1, le=2**24)
    long_samples: LongSamples = "cut_input"
    loss_on: LossOn = "marked"
    tokens_per_batch: int = Field(ge=1, le=2**40)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    check_tokenizer: bool = True

    @model_validator(mode="after")
    def _check_max_tokens_fit_a_batch(self) -> Self:
        if self.max_tokens > self.tokens_per_batch:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) exceeds tokens_per_batch "
                f"({self.tokens_per_batch}), so that a long sample would not fit in any batch; "
                "lower max_tokens or raise tokens_per_batch"
            )
        return self

    @model_validator(mode="after")
    def _check_one_source_of_samples(self) -> Self:
        if self.dataset and self.mixture:
            raise ValueError(
                f"both dataset ('{self.dataset}') and [[data.mixture]] are given; put the dataset "
                "into the mixture, or leave one of the two out"
            )
        if self.lengths and (self.dataset or self.mixture):
            other = f"dataset ('{self.dataset}')" if self.dataset else "[[data.mixture]]"
            raise ValueError(f"both {other} and [data.lengths] are given; leave one out")
        if not (self.dataset or self.mixture or self.lengths):
            raise ValueError(
                "no samples are named; set dataset, [[data.mixture]] tables of several datasets "
                "or, for simulations, a [data.lengths] table"
            )
        if self.mixture and len(self.mixture) == 1:
            raise ValueError(
                f"there is only one [[data.mixture]] table; write dataset = "
                f"'{self.mixture[0].dataset}' in its place"
            )
        return self

    @model_validator(mode="after")
    def _check_rates_by_weights_or_sizes(self) -> Self:
        given = [key for key in ("mixture_cap", "mixture_temperature") if getattr(self, key)]
        if given and not self.mixture:
            raise ValueError(f"{given[0]} is for [[data.mixture]] tables, but there are none")
        weighted = [entry for entry in self.mixture or () if entry.weight]
        if weighted and given:
            raise ValueError(
                f"{given[0]} makes rates follow from the sizes of datasets, but "
                f"'{weighted[0].name}' has weight = {weighted[0].weight}; leave one of the two out"
            )
        if weighted and len(weighted) < len(self.mixture or ()):
            [without, *_] = [entry for entry in self.mixture or () if not entry.weight]
            raise ValueError(
                f"mixture: '{weighted[0].name}' has weight = {weighted[0].weight}, but "
                f"'{without.name}' has none; give all datasets a weight, or none"
            )
        return self

    @model_validator(mode="after")
    def _check_dataset_names_differ(self) -> Self:
        names = [entry.name for entry in self.mixture or ()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"mixture: two datasets have the name '{name}'; set name for one")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the dataset, or of all datasets of the mixture; empty for drawn lengths."""
        return (self.dataset,) if self.dataset else tuple(e.dataset for e in self.mixture or ())

    def alone(self, path: str) -> Self:
        """The same table with this dataset, and neither a mixture nor drawn lengths."""
        nothing = dict.fromkeys(("mixture", "mixture_cap", "mixture_temperature", "lengths"))
        return self.model_copy(update={**nothing, "dataset": path})
