"""A whole experiment: one table per package, and the checks that span tables."""

from typing import Self

from pydantic import model_validator

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.training.config import TrainingConfig


class ExperimentConfig(ConfigTable):
    """Everything a run depends on. Each attribute is the table of the same name."""

    data: DataConfig
    model: ModelShape
    cluster: Cluster
    planner: PlannerConfig
    training: TrainingConfig
    store: StoreConfig = StoreConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="after")
    def _samples_fit_the_model(self) -> Self:
        if self.data.max_tokens > self.model.max_tokens:
            raise ValueError(
                f"data.max_tokens ({self.data.max_tokens}) exceeds model.max_tokens "
                f"({self.model.max_tokens}), the longest row of the model; lower the one or "
                "raise the other"
            )
        return self

    @model_validator(mode="after")
    def _every_stage_has_a_layer(self) -> Self:
        if self.cluster.n_stages > self.model.n_layers:
            raise ValueError(
                f"cluster.n_stages ({self.cluster.n_stages}) exceeds model.n_layers "
                f"({self.model.n_layers}); a stage needs at least one layer"
            )
        return self
