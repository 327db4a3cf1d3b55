"""An experiment as its verbs see it: everything that it names is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.place_layers import LayersPerStage, place_layers, with_layers
from dynapipe_hpc.planner.cost.from_config import CostSource
from dynapipe_hpc.planner.make_plans import Planner

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import DatasetFile


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """A configuration whose layers have their stages, with its files open.

    Attributes:
        config: The configuration, with `model.layers_per_stage`.
        dataset: The tokens.
        sampler: The global batches.
        costs: What micro-batches cost: estimates, or the cost table.
        planner: The plans.
    """

    config: ExperimentConfig
    dataset: DatasetFile
    sampler: TokenBudgetSampler
    costs: CostSource
    planner: Planner


def open_experiment(
    files: ExperimentFiles, layers_per_stage: LayersPerStage | None = None
) -> Experiment:
    """Opens what is not open yet, and makes the planner.

    Args:
        files: The files.
        layers_per_stage: The choice of `place_layers`, where another rank has made it.

    Raises:
        InputError: A file cannot be used, or does not go with the model.
    """
    config = with_layers(files.config, layers_per_stage or place_layers(files))
    planner = Planner.of(
        config.planner, files.costs, config.model, config.cluster, config.data.max_tokens
    )
    return Experiment(config, files.dataset, files.sampler, files.costs, planner)
