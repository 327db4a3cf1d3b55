"""Description of a run's data: its mixture of datasets, and the samples that are too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dynapipe_hpc.data.dataset.describe_long_samples import describe_long

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.experiment.experiment import Experiment
    from dynapipe_hpc.experiment.files import ExperimentFiles

MAX_COUNTED = 16
"""Iterations whose samples are counted, to estimate those of all."""


def describe_data(experiment: Experiment | ExperimentFiles, n_iterations: int) -> Iterator[str]:
    """Yields a line per dataset of a mixture, and lines about samples above data.max_tokens.

    Raises:
        InputError: A dataset cannot be used.
    """
    if mixture := experiment.mixture:
        n_counted = min(n_iterations, MAX_COUNTED)
        n_samples = sum(len(experiment.sampler.iteration(k)) for k in range(n_counted))
        about = "about " if n_counted < n_iterations else ""
        lines = mixture.describe(n_samples * n_iterations // n_counted)
        yield from (f"in {about}{n_iterations:,} iterations, {line}" for line in lines)
    if experiment.config.data.lengths is None:
        yield from describe_long(experiment.dataset, experiment.config.data)
