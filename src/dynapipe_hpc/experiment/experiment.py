"""An experiment with all its files open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.dataset.mixture import Mixture
from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.evaluation_samples import EvaluationSamples
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.place_layers import place_layers
from dynapipe_hpc.planner.cost.corrected_cost import Corrections
from dynapipe_hpc.planner.cost.from_config import CostSource
from dynapipe_hpc.planner.make_plans import Planner

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset


@dataclass(frozen=True, slots=True, eq=False)
class Experiment:
    """A configuration with its files open and its layers placed on stages.

    Attributes:
        config: The configuration, with a number of iterations in place of epochs or tokens.
        files: The files; plans of drawn lengths have no dataset.
        mixture: Rates at which samples are drawn from several datasets; None for a single one.
        sampler: Sampler of the global batches.
        costs: Costs of micro-batches: estimates, or the cost table.
        placement: The layers of every stage.
        planner: Planner of the iterations.
        evaluation: The samples that are evaluated; None if nothing is.
    """

    config: ExperimentConfig
    files: ExperimentFiles
    mixture: Mixture | None
    sampler: TokenBudgetSampler
    costs: CostSource
    placement: Placement
    planner: Planner
    evaluation: EvaluationSamples | None = None

    @property
    def dataset(self) -> Dataset:
        """The dataset, or those of a mixture read as one.

        Raises:
            InputError: It cannot be used, or lengths are drawn in its place.
        """
        return self.files.dataset

    @property
    def forward_planner(self) -> Planner:
        """The planner of forward passes alone."""
        return self.planner.of_evaluation(self.config.planner.batch)

    def without_slices(self) -> Experiment:
        """The experiment with all samples run whole."""
        config = self.config.without_slices()
        planner = self.files.variant(config).planner(self.placement)
        return replace(self, config=config, planner=planner)

    def corrected_planner(self, corrections: Corrections) -> Planner:
        """The planner with the times of passes corrected, see `Planner.corrected`."""
        max_tokens = self.config.data.max_tokens
        return self.planner.corrected(self.config.planner, corrections, max_tokens)


def open_experiment(files: ExperimentFiles, placement: Placement | None = None) -> Experiment:
    """Opens the remaining files, and makes the planner.

    Args:
        files: The files.
        placement: Result of `place_layers` from another rank; None to call it here.

    Raises:
        InputError: A file cannot be used, or does not suit the model.
    """
    config = files.config.model_copy(update={"training": files.training})
    placement = placement or place_layers(files)
    planner = files.planner(placement)
    return Experiment(
        config=config,
        files=files,
        mixture=files.mixture,
        sampler=files.sampler,
        costs=files.costs,
        placement=placement,
        planner=planner,
        evaluation=files.evaluation,
    )
