"""An experiment whose layers have their stages."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.long_samples import used_tokens
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import Lengths, samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.source import open_sampler
from dynapipe_hpc.planner.batch.row_length import RowLengths, rows_of_tokens
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.placement.placements import placements
from dynapipe_hpc.planner.placement.typical_sizes import typical_sizes

N_TRIED = 3
"""Batches that are planned to compare placements."""


class _Batches(NamedTuple):
    """What a model is placed for.

    Attributes:
        lengths: The rows of all samples.
        first: The first batches.
    """

    lengths: RowLengths
    first: Sequence[Sequence[Sample]]


def placed(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration with `model.layers_per_stage`, chosen for its dataset.

    Of equal shares and the placements that keep stages even, it is the one with which the first
    batches are predicted to take least. One that the configuration names is kept.

    Raises:
        InputError: Dataset or costs cannot be read.
    """
    if config.model.layers_per_stage:
        return config
    with DatasetFile(Path(config.data.dataset)) as dataset:
        sampler = open_sampler(config, dataset)
    first = [sampler.iteration(k) for k in range(N_TRIED)]
    return _placed(config, _Batches(rows_of_dataset(config, dataset), first))


def rows_of_dataset(config: ExperimentConfig, dataset: DatasetFile) -> RowLengths:
    """The rows of all samples that are used, as far as the configuration uses them."""
    lengths = dataset.input_lengths, dataset.target_lengths
    kept, inputs, targets = used_tokens(*lengths, config.data)
    return rows_of_tokens(inputs[kept], targets[kept], config.model.is_encoder_decoder)


def placed_for_lengths(config: ExperimentConfig, batches: Sequence[Lengths]) -> ExperimentConfig:
    """As `placed`, for batches of input and target tokens.

    Raises:
        InputError: Costs cannot be read.
    """
    if config.model.layers_per_stage:
        return config
    inputs, targets = np.concatenate(batches).T.astype(np.int64)
    rows = rows_of_tokens(inputs, targets, config.model.is_encoder_decoder)
    first = [samples_of_lengths(batch) for batch in batches[:N_TRIED]]
    return _placed(config, _Batches(rows, first))


def _placed(config: ExperimentConfig, batches: _Batches) -> ExperimentConfig:
    sizes = typical_sizes(batches.lengths, config.data.tokens_per_batch, config.cluster)
    counts = placements(config.planner.cost, config.model, config.cluster, sizes)
    choices = [_with_layers(config, each) for each in counts]
    if len(choices) == 1:
        return choices[0]
    return min(choices, key=lambda choice: _predicted_ms(choice, batches.first))


def _with_layers(config: ExperimentConfig, counts: tuple[int, ...]) -> ExperimentConfig:
    model = config.model.model_copy(update={"layers_per_stage": counts})
    return config.model_copy(update={"model": model})


def _predicted_ms(config: ExperimentConfig, batches: Sequence[Sequence[Sample]]) -> float:
    """Of all batches together; infinite if one of them cannot run."""
    planner = Planner.of(config.planner, config.model, config.cluster, config.data.max_tokens)
    try:
        return sum(planner.choose(samples).best.makespan_ms for samples in batches)
    except InputError:  # whoever plans next says so
        return float("inf")
