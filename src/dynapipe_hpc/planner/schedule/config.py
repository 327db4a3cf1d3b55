"""The [planner.schedule] table."""

from collections.abc import Iterable, Mapping
from typing import Literal, Self

from pydantic import model_validator

from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.gpipe import gpipe
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1

RuleName = Literal["gpipe", "1f1b", "cyclic", "adaptive", "zb_h1"]

RULES: Mapping[RuleName, ScheduleRule] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "cyclic": cyclic,
    "adaptive": adaptive,
}
"""Rules that keep backward passes whole."""

SPLIT_RULES: Mapping[RuleName, ScheduleRule] = {
    "1f1b": one_f_one_b,
    "zb_h1": zb_h1,
    "adaptive": adaptive_split,
}
"""Rules to choose from where backward passes may be split; 1F1B keeps them whole."""

_BASELINES = ("gpipe",)


def name_of(rule: ScheduleRule) -> str:
    """What a configuration calls a rule."""
    return next(
        name for rules in (RULES, SPLIT_RULES) for name, known in rules.items() if known is rule
    )


def may_split(rules: Iterable[ScheduleRule]) -> bool:
    """Whether any of the rules splits backward passes."""
    return any(rule not in RULES.values() for rule in rules)


class ScheduleConfig(ConfigTable):
    """The [planner.schedule] table: how micro-batches pass through the pipeline.

    Attributes:
        rules: Rules to try; the schedule that ends first in the simulation is used. If empty,
            all except gpipe, a baseline that is tried only if named.
        split_backward: Whether weight gradients may have separate passes, which run while a
            stage would be idle. Only planning supports this so far; runs do not.
    """

    rules: tuple[RuleName, ...] = ()
    split_backward: bool = False

    @property
    def chosen_rules(self) -> list[ScheduleRule]:
        """The rules to try."""
        known = self._known
        names = self.rules or [name for name in known if name not in _BASELINES]
        return [known[name] for name in names]

    @property
    def _known(self) -> Mapping[RuleName, ScheduleRule]:
        return SPLIT_RULES if self.split_backward else RULES

    @model_validator(mode="after")
    def _rules_go_with_split_backward(self) -> Self:
        for name in self.rules:
            if name not in self._known:
                raise ValueError(
                    f"rules: {name!r} cannot be used with split_backward = "
                    f"{str(self.split_backward).lower()}, only {', '.join(self._known)}; name "
                    "one of these, or change split_backward"
                )
        return self
