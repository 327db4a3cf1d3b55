"""Split backward passes of an experiment: which are measured, and where their times come from."""

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.from_config import schedule_rules, unmeasured_halves
from dynapipe_hpc.planner.schedule.may_split import may_split


def kinds_with_halves(config: ExperimentConfig, recompute: Recompute) -> frozenset[str]:
    """Kinds of parts whose split backward passes are measured in a mode of recomputation.

    Those are the layers that defer gradients of weights in that mode, and what a stage's passes
    take besides; none if no layer defers any, or if plans never split. The other parts take as long
    as in a whole pass.
    """
    if not may_split(schedule_rules(config.planner.schedule)):
        return frozenset()
    deferring = config.model.deferring_kinds(recompute)
    return frozenset({*deferring, STAGE} if deferring else ())


def describe_halves(costs: CostSource, config: ExperimentConfig) -> str:
    """Whether the halves of backward passes were measured; empty if plans never split any."""
    if not may_split(schedule_rules(config.planner.schedule)):
        return ""
    if not isinstance(costs, MeasuredCosts):
        return "estimated by FLOPs, as all costs; splitting takes no time"
    estimated = unmeasured_halves(costs, config.planner, config.model, config.cluster.n_shards)
    if not estimated:
        return "measured"
    return (
        f"gradients of weights are estimated by FLOPs, and splitting takes no time, of "
        f"{', '.join(estimated)}; 'dynapipe-hpc profile CONFIG -o TABLE.h5' measures both"
    )
