"""The [planner] table."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.planner.baselines.config import (
    BaselineConfig,
    DensePackingConfig,
    NaivePaddingConfig,
    PackedBalancedConfig,
    PackedNextFitConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.slice_rule import SliceSetting
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.config import CostConfig
from dynapipe_hpc.planner.schedule.config import ScheduleConfig

BatchConfig = Annotated[
    DynamicConfig | BaselineConfig,
    Field(discriminator="rule"),
]


EVERY_BATCH_RULE: tuple[BatchConfig, ...] = (
    DynamicConfig(),
    PackedBalancedConfig(rule="packed_balanced"),
    PackedNextFitConfig(rule="packed_next_fit"),
    TokenBudgetConfig(rule="token_budget"),
    NaivePaddingConfig(rule="naive_padding"),
    DensePackingConfig(rule="dense_packing"),
)
"""Batch rules with their default settings; settings of baselines are tuned for every batch."""


class PlannerConfig(ConfigTable):
    """Settings of the planner: one table per step.

    Attributes:
        cost: Where predicted times and memory come from.
        batch: How samples form micro-batches.
        schedule: How micro-batches pass through the pipeline.
        search: How long the best plan found is improved; used for dynamic micro-batches only.
    """

    cost: CostConfig
    batch: BatchConfig
    schedule: ScheduleConfig = ScheduleConfig()
    search: SearchConfig = SearchConfig()

    @property
    def slices(self) -> SliceSetting:
        """Cutting of long samples into slices; "off" if layouts or schedules do not allow it."""
        batch = self.batch
        if not isinstance(batch, DynamicConfig) or Layout.PACKED not in self._layouts:
            return "off"
        return batch.slices if "adaptive" in self.schedule.chosen_rules else "off"

    @property
    def slice_tokens(self) -> int:
        """Tokens per slice, for samples longer than a slice; 0 if no number is set."""
        slices = self.batch.slices if isinstance(self.batch, DynamicConfig) else "off"
        return slices if isinstance(slices, int) else 0

    @model_validator(mode="after")
    def _check_slices_need_adaptive_schedules(self) -> Self:
        if self.slice_tokens and "adaptive" not in self.schedule.chosen_rules:
            raise ValueError(
                f"batch.slices is {self.slice_tokens}, but the backward passes of a sample's "
                "slices run in reverse order, which no schedule with a fixed order allows; add "
                "'adaptive' to schedule.rules, or set slices to \"auto\""
            )
        return self

    @property
    def may_pack(self) -> bool:
        """Whether plans may have packed micro-batches."""
        return Layout.PACKED in self._layouts

    @property
    def token_multiple(self) -> int:
        """Multiple that the rows of plans are padded to."""
        return self.batch.token_multiple if isinstance(self.batch, DynamicConfig) else ROW_MULTIPLE

    @property
    def document_multiple(self) -> int:
        """Multiple to which a single sample's positions are padded."""
        batch = self.batch
        return batch.document_multiple if isinstance(batch, DynamicConfig) else ROW_MULTIPLE

    @property
    def plainest_layout(self) -> Layout:
        """Layout for which a model is placed: packed if plans have packed micro-batches only."""
        return min(self._layouts)

    @property
    def _layouts(self) -> tuple[Layout, ...]:
        match self.batch:
            case DynamicConfig() as batch:
                return batch.layouts_to_choose
            case PackedBalancedConfig() | PackedNextFitConfig():
                return (Layout.PACKED,)
            case _:
                return (Layout.PADDED,)
