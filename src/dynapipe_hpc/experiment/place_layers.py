"""Placement of layers on stages, chosen for the dataset of an experiment."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import Lengths, samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.planner.batch.row_length import RowLengths, rows_of_tokens
from dynapipe_hpc.planner.cost.from_config import CostSource
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.placement.placements import placements
from dynapipe_hpc.planner.placement.typical_sizes import typical_sizes

N_TRIED = 3
"""Number of batches that are planned to compare placements."""

LayersPerStage = tuple[int, ...]
"""Number of layers of every stage, as in `model.layers_per_stage`."""


def place_layers(files: ExperimentFiles) -> LayersPerStage:
    """The configured layers of every stage, or a choice for the dataset.

    It is chosen among equal shares and placements that balance stages: the one with the least
    predicted time for the first batches.

    Raises:
        InputError: Dataset or costs cannot be used.
    """
    if files.config.model.layers_per_stage:
        return files.config.model.layers_per_stage
    first = [files.sampler.iteration(k) for k in range(N_TRIED)]
    return _place(files.config, files.costs, files.rows, first)


def place_layers_for(files: ExperimentFiles, batches: Sequence[Lengths]) -> LayersPerStage:
    """As `place_layers`, for batches of input and target lengths instead of the dataset.

    Raises:
        InputError: The costs cannot be used.
    """
    model = files.config.model
    if model.layers_per_stage:
        return model.layers_per_stage
    inputs, targets = np.concatenate(batches).T.astype(np.int64)
    rows = rows_of_tokens(inputs, targets, model.is_encoder_decoder)
    first = [samples_of_lengths(batch) for batch in batches[:N_TRIED]]
    return _place(files.config, files.costs, rows, first)


def with_layers(config: ExperimentConfig, counts: LayersPerStage) -> ExperimentConfig:
    """The configuration with these layers on its stages."""
    model = config.model.model_copy(update={"layers_per_stage": counts})
    return config.model_copy(update={"model": model})


def _place(
    config: ExperimentConfig,
    costs: CostSource,
    rows: RowLengths,
    first: Sequence[Sequence[Sample]],
) -> LayersPerStage:
    """The best placement for the rows of all samples and the first batches."""
    sizes = typical_sizes(rows, config.data.tokens_per_batch, config.cluster)
    counts = placements(costs, config.model, config.cluster, sizes)
    if len(counts) == 1:
        return counts[0]
    return min(counts, key=lambda each: _predicted_ms(with_layers(config, each), costs, first))


def _predicted_ms(
    config: ExperimentConfig, costs: CostSource, batches: Sequence[Sequence[Sample]]
) -> float:
    """Predicted time of all batches together; infinite if one of them cannot run."""
    shape, cluster, max_tokens = config.model, config.cluster, config.data.max_tokens
    planner = Planner.of(config.planner, costs, shape, cluster, max_tokens)
    try:
        return sum(planner.choose(samples).best.makespan_ms for samples in batches)
    except InputError:  # reported when it is planned for use
        return float("inf")
