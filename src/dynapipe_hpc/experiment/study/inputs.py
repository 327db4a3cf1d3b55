"""Checksums of all that a simulation reads besides its configuration."""

import hashlib
from collections.abc import Iterable

import numpy as np

from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts
from dynapipe_hpc.planner.cost.table.checksum import checksum_of


def inputs_of(files: ExperimentFiles, variants: Iterable[ExperimentFiles]) -> dict[str, str]:
    """Checksums of the lengths of samples, and of every cost table.

    Args:
        files: Files of the experiment.
        variants: Files of every method, which may have a cost table of its own.

    Raises:
        InputError: A file cannot be used.
    """
    lengths = hashlib.blake2b(digest_size=8)
    for numbers in files.trained:
        lengths.update(np.ascontiguousarray(numbers, "<i8").data)
    checksums = {"the samples": lengths.hexdigest()}
    for costs in (variant.costs for variant in variants):
        if isinstance(costs, MeasuredCosts):
            checksums[f"the cost table {costs.config.path}"] = checksum_of(costs.table)
    return checksums
