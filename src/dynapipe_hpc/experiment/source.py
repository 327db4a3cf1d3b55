"""Where samples and plans come from."""

from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sampler import TokenBudgetSampler
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.make_plans import Planner


@dataclass(frozen=True, slots=True)
class Source:
    """Samples and plans, the same on every rank.

    Attributes:
        dataset: The tokens.
        sampler: The global batches.
        planner: The plans.
    """

    dataset: DatasetFile
    sampler: TokenBudgetSampler
    planner: Planner


def open_source(config: ExperimentConfig) -> Source:
    """Opens the dataset and the planner.

    Raises:
        InputError: A file cannot be used, or does not go with the model.
    """
    dataset = DatasetFile(Path(config.data.dataset))
    if dataset.vocab_size > config.model.vocab_size:
        raise InputError(
            f"data.dataset = '{config.data.dataset}': its tokenizer has {dataset.vocab_size} "
            f"tokens, but model.vocab_size is {config.model.vocab_size}; raise it to at least "
            "the former"
        )
    sampler = TokenBudgetSampler(
        dataset.input_lengths, dataset.target_lengths, dataset.task_ids, config.data
    )
    planner = Planner.of(config.planner, config.model, config.cluster, config.data.max_tokens)
    return Source(dataset, sampler, planner)
