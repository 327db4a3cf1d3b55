"""Placement of layers on stages, chosen for the dataset of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import Lengths, samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.batch.row_length import RowLengths, rows_of_tokens
from dynapipe_hpc.planner.placement.placements import placements
from dynapipe_hpc.planner.placement.typical_sizes import typical_sizes

if TYPE_CHECKING:  # which places layers by this
    from dynapipe_hpc.experiment.experiment import Experiment

N_TRIED = 3
"""Number of batches that are planned to compare placements."""


def place_layers(experiment: Experiment) -> Placement:
    """Placement that is configured or, if none is, chosen for the dataset.

    It is chosen among equal shares and placements that balance stages: the one with the least
    predicted time for the first batches.
    """
    if configured := experiment.config.model.layers_per_stage:
        return Placement(configured)
    first = [experiment.sampler.iteration(k) for k in range(N_TRIED)]
    return _fastest(experiment, experiment.rows, first)


def place_layers_for(experiment: Experiment, batches: Sequence[Lengths]) -> Placement:
    """Placement that is configured or, if none is, chosen for batches of lengths.

    It is chosen as by `place_layers`; the dataset is not read.
    """
    model = experiment.config.model
    if configured := model.layers_per_stage:
        return Placement(configured)
    inputs, targets = np.concatenate(batches).T.astype(np.int64)
    rows = rows_of_tokens(inputs, targets, model.has_target_rows)
    return _fastest(experiment, rows, [samples_of_lengths(batch) for batch in batches[:N_TRIED]])


def any_placement(config: ExperimentConfig) -> Placement:
    """Placement that is configured or, if none is, equal shares: where no placement is better.

    That is, where costs are checked or measured, but no plan is made.
    """
    if configured := config.model.layers_per_stage:
        return Placement(configured)
    return Placement.equal_shares(config.model.n_all_layers, config.cluster.n_stages)


def _fastest(
    experiment: Experiment, rows: RowLengths, first: Sequence[Sequence[Sample]]
) -> Placement:
    """The best placement for the rows of all samples and the first batches."""
    config = experiment.config
    sizes = typical_sizes(rows, config.data.tokens_per_batch, config.cluster)
    layout = config.planner.plainest_layout
    candidates = placements(experiment.costs, config.model, config.cluster, sizes, layout=layout)
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda placement: _predicted_ms(experiment, placement, first))


def _predicted_ms(
    experiment: Experiment, placement: Placement, batches: Sequence[Sequence[Sample]]
) -> float:
    """Predicted time of all batches together; infinite if one of them cannot run."""
    planner = experiment.planner_of(placement)
    try:
        return sum(planner.choose(samples).best.iteration_ms for samples in batches)
    except InputError:  # reported when it is planned for use
        return float("inf")
