"""The [planner.schedule] table."""

import pytest
from pydantic import ValidationError

from dynapipe_hpc.planner.from_config import schedule_rules
from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.cyclic import cyclic
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1


def test_all_rules_but_the_baseline_are_tried_by_default() -> None:
    assert schedule_rules(ScheduleConfig()) == [one_f_one_b, cyclic, adaptive]


def test_split_backward_passes_are_compared_with_schedules_that_keep_them_whole() -> None:
    assert schedule_rules(ScheduleConfig(split_backward=True)) == [
        one_f_one_b,
        zb_h1,
        adaptive_split,
        adaptive,
    ]
    only = ScheduleConfig(split_backward=True, rules=("zb_h1",))
    assert schedule_rules(only) == [zb_h1]


def test_named_rules_are_tried_in_their_order() -> None:
    assert schedule_rules(ScheduleConfig(rules=("cyclic", "1f1b"))) == [cyclic, one_f_one_b]


@pytest.mark.parametrize(("rule", "split"), [("cyclic", True), ("zb_h1", False)])
def test_rules_that_do_not_go_with_split_backward_are_refused(rule: str, split: bool) -> None:
    message = f"rules: '{rule}' cannot be used with split_backward = {str(split).lower()}, only "
    with pytest.raises(ValidationError, match=message):
        ScheduleConfig.model_validate({"rules": ["1f1b", rule], "split_backward": split})


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValidationError, match="Input should be '1f1b', 'cyclic', 'adaptive' or 'zb_h1'"
    ):
        ScheduleConfig.model_validate({"rules": ["1f2b"]})
