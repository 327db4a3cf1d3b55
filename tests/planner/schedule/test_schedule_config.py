"""The [planner.schedule] table."""

import pytest
from pydantic import ValidationError

from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.config import RULES, ScheduleConfig
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b


def test_all_rules_but_the_baseline_are_tried_by_default() -> None:
    assert [RULES[name] for name in ScheduleConfig().rules] == [one_f_one_b, cyclic, adaptive]


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValidationError, match="Input should be 'gpipe', '1f1b', 'cyclic' or 'adaptive'"
    ):
        ScheduleConfig.model_validate({"rules": ["1f2b"]})


def test_at_least_one_rule_is_needed() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        ScheduleConfig(rules=())
