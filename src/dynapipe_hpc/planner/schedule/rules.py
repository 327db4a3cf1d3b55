"""The schedule rules that a configuration names, and whether they split backward passes."""

from collections.abc import Iterable, Mapping

from dynapipe_hpc.planner.schedule.adaptive import adaptive, adaptive_split
from dynapipe_hpc.planner.schedule.config import RuleName, ScheduleConfig
from dynapipe_hpc.planner.schedule.fixed_order import cyclic, one_f_one_b, zb_h1
from dynapipe_hpc.planner.schedule.schedule_rule import ScheduleRule

RULES: Mapping[RuleName, ScheduleRule] = {
    "1f1b": one_f_one_b,
    "cyclic": cyclic,
    "adaptive": adaptive,
}
"""Schedule rules that do not split backward passes."""

SPLIT_RULES: Mapping[RuleName, ScheduleRule] = {
    "1f1b": one_f_one_b,
    "zb_h1": zb_h1,
    "adaptive": adaptive_split,
}
"""Schedule rules to choose from where backward passes may be split."""

_NAMES = {rule: name for rules in (RULES, SPLIT_RULES) for name, rule in rules.items()}


def name_of(rule: ScheduleRule) -> str:
    """The name of a rule in a configuration."""
    return _NAMES.get(rule, "the schedule rule")


def schedule_rules(config: ScheduleConfig) -> list[ScheduleRule]:
    """The schedule rules that a [planner.schedule] table asks for."""
    if not config.split_backward:
        return [RULES[name] for name in config.chosen_rules]
    rules = [SPLIT_RULES[name] for name in config.chosen_rules]
    # Splitting takes time of its own, so that unsplit passes may be faster.
    return [*rules, adaptive] if adaptive_split in rules else rules


def may_split(rules: Iterable[ScheduleRule]) -> bool:
    """Whether any of the rules computes weight gradients in separate passes."""
    return any(rule in (zb_h1, adaptive_split) for rule in rules)
