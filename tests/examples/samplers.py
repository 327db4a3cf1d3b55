"""Samplers of one dataset."""

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.dataset_file import Dataset
from dynapipe_hpc.data.dataset.long_samples import used_of
from dynapipe_hpc.data.dataset.sampler import EpochBatches, TokenBudgetSampler


def sampler_of(dataset: Dataset, config: DataConfig) -> TokenBudgetSampler:
    """Of the samples of a dataset, epoch by epoch."""
    used = used_of(dataset, config)
    return TokenBudgetSampler(used, dataset.task_ids, EpochBatches(used, config))
