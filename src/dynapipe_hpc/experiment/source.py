"""Where samples and plans come from."""

from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.errors import InputError
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


def check_batch_sizes(config: ExperimentConfig, sampler: TokenBudgetSampler) -> None:
    """Refuses a run of which some iteration has fewer samples than there are replicas.

    Raises:
        InputError: Names the first.
    """
    n_replicas = config.cluster.n_replicas
    k = sampler.first_below(n_replicas, config.training.iterations)
    if k is not None:
        enough = n_replicas * config.data.max_tokens
        raise InputError(
            f"data.tokens_per_batch = {config.data.tokens_per_batch:,}: iteration {k} has "
            f"{len(sampler.iteration(k))} samples for cluster.n_replicas = {n_replicas}, each of "
            f"which needs one; raise it (to {enough:,} if there are samples enough), or lower the "
            "latter"
        )


def check_vocabulary(config: ExperimentConfig, dataset: DatasetFile) -> None:
    """Refuses a dataset with tokens that the model does not know.

    Raises:
        InputError: It may have some.
    """
    if dataset.vocab_size > config.model.vocab_size:
        raise InputError(
            f"data.dataset = '{config.data.dataset}': its tokenizer has {dataset.vocab_size} "
            f"tokens, but model.vocab_size is {config.model.vocab_size}; raise it to at least "
            "the former"
        )


def open_sampler(config: ExperimentConfig, dataset: DatasetFile) -> TokenBudgetSampler:
    """The global batches of a dataset.

    Raises:
        InputError: It holds no samples.
    """
    lengths = (dataset.input_lengths, dataset.target_lengths)
    return TokenBudgetSampler(*lengths, dataset.task_ids, config.data)


def open_source(config: ExperimentConfig) -> Source:
    """Opens the dataset and the planner.

    Raises:
        InputError: A file cannot be used, or does not go with the model.
    """
    dataset = DatasetFile(Path(config.data.dataset))
    check_vocabulary(config, dataset)
    sampler = open_sampler(config, dataset)
    planner = Planner.of(config.planner, config.model, config.cluster, config.data.max_tokens)
    return Source(dataset, sampler, planner)
