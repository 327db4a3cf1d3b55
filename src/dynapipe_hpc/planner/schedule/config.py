"""The [planner.schedule] table."""

from typing import Literal, Self

from pydantic import model_validator

from dynapipe_hpc.data.config_table import ConfigTable

RuleName = Literal["1f1b", "cyclic", "adaptive", "zb_h1"]

WHOLE: tuple[RuleName, ...] = ("1f1b", "cyclic", "adaptive")
"""Rules that do not split backward passes."""

SPLIT: tuple[RuleName, ...] = ("1f1b", "zb_h1", "adaptive")
"""Rules to choose from where backward passes may be split; 1F1B does not split them."""


class ScheduleConfig(ConfigTable):
    """The [planner.schedule] table: how micro-batches pass through the pipeline.

    Attributes:
        rules: Rules to try; the schedule that ends first in the simulation is used. If empty: 1f1b,
            cyclic and adaptive; with split_backward: 1f1b, zb_h1 and adaptive. zb_h1 needs
            split_backward; cyclic excludes it.
        split_backward: Whether weight gradients of linear layers may have separate passes, which
            run while a stage would be idle. Weight gradients of recomputed blocks never do.
    """

    rules: tuple[RuleName, ...] = ()
    split_backward: bool = False

    @property
    def chosen_rules(self) -> tuple[RuleName, ...]:
        """The names of the rules to try."""
        return self.rules or self._known

    @property
    def _known(self) -> tuple[RuleName, ...]:
        return SPLIT if self.split_backward else WHOLE

    @model_validator(mode="after")
    def _check_rules_match_split_backward(self) -> Self:
        for name in self.rules:
            if name not in self._known:
                raise ValueError(
                    f"rules: {name!r} cannot be used with split_backward = "
                    f"{str(self.split_backward).lower()}; these can: {', '.join(self._known)}; "
                    "name one of these, or change split_backward"
                )
        return self
