"""The [planner.schedule] table."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.gpipe import gpipe
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

RuleName = Literal["gpipe", "1f1b", "cyclic", "adaptive"]

RULES: Mapping[RuleName, ScheduleRule] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "cyclic": cyclic,
    "adaptive": adaptive,
}


def name_of(rule: ScheduleRule) -> str:
    """What a configuration calls a rule."""
    return next(name for name, known in RULES.items() if known is rule)


class ScheduleConfig(ConfigTable):
    """How micro-batches pass through the pipeline. The [planner.schedule] table.

    Attributes:
        rules: Rules to try; the schedule that ends first in the simulation is used. gpipe
            is a baseline and tried only if named.
    """

    rules: tuple[RuleName, ...] = Field(default=("1f1b", "cyclic", "adaptive"), min_length=1)
