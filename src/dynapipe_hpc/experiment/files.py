"""The files that an experiment reads."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.dataset.long_samples import used_tokens
from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.batch.row_length import RowLengths, rows_of_tokens
from dynapipe_hpc.planner.cost.from_config import CostSource, read_costs
from dynapipe_hpc.planner.make_plans import Planner

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import DatasetFile


class ExperimentFiles:
    """Dataset and cost table of an experiment; each is opened once, on first access.

    All properties raise `InputError` if a file cannot be used.

    Attributes:
        config: The configuration, which names the files.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        """Opens nothing yet."""
        self.config = config

    @cached_property
    def dataset(self) -> DatasetFile:
        """The dataset, whose tokens the model knows."""
        from dynapipe_hpc.data.dataset.dataset_file import DatasetFile

        dataset = DatasetFile(Path(self.config.data.dataset))
        check_vocabulary(self.config, dataset)
        return dataset

    @cached_property
    def sampler(self) -> TokenBudgetSampler:
        """Sampler of the global batches of the dataset."""
        lengths = (self.dataset.input_lengths, self.dataset.target_lengths)
        return TokenBudgetSampler(*lengths, self.dataset.task_ids, self.config.data)

    @cached_property
    def rows(self) -> RowLengths:
        """Row lengths of the used samples of the dataset, after long ones are cut."""
        lengths = self.dataset.input_lengths, self.dataset.target_lengths
        kept, inputs, targets = used_tokens(*lengths, self.config.data)
        two_sides = self.config.model.architecture.has_target_rows
        return rows_of_tokens(inputs[kept], targets[kept], two_sides)

    @cached_property
    def costs(self) -> CostSource:
        """Costs of micro-batches: estimates, or the cost table."""
        return read_costs(self.config.planner.cost, self.config.model)

    def planner(self, placement: Placement) -> Planner:
        """Planner of the iterations, for layers that are placed in this way."""
        config = self.config
        return Planner.of(
            config.planner,
            self.costs,
            config.model,
            placement,
            config.cluster,
            config.data.max_tokens,
        )

    def variant(self, config: ExperimentConfig) -> Self:
        """Files of another experiment with the same dataset and costs, which are not read again."""
        other = type(self)(config)
        for name in ("dataset", "sampler", "rows", "costs"):
            setattr(other, name, getattr(self, name))
        return other


def check_vocabulary(config: ExperimentConfig, dataset: DatasetFile) -> None:
    """Refuses a dataset with tokens outside the model's vocabulary.

    Raises:
        InputError: The vocabulary of the dataset is larger than that of the model.
    """
    if dataset.vocab_size > config.model.vocab_size:
        raise InputError(
            f"data.dataset = '{config.data.dataset}': its tokenizer has {dataset.vocab_size} "
            f"tokens, but model.vocab_size is {config.model.vocab_size}; raise it to at least "
            f"{dataset.vocab_size}"
        )
