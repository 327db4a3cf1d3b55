"""Times of a rank's passes in one iteration, beside what its stage was predicted to take."""

import numpy as np

from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Load,
)
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.cost.corrected_cost import Timed
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray
from dynapipe_hpc.planner.cost.pass_times import PassTimes


def measured_passes(
    plan: RankPlan, trace: IterationTrace, cost: CostModel, factors: FloatArray, *, n_replicas: int
) -> PassTimes:
    """Times of the passes that a rank has executed, each beside its uncorrected prediction.

    Reading the tokens of a micro-batch is part of its forward pass, as in cost tables.

    Args:
        plan: The plan.
        trace: Trace of its execution.
        cost: Cost model without corrections.
        factors: Factors that are known so far, see `PassTimes.factors`.
        n_replicas: Number of replicas.
    """
    costs = microbatch_costs(plan.microbatches, cost)
    columns = (costs.forward_ms, costs.backward_ms, costs.weight_ms, costs.splitting_ms)
    of_microbatch = [column[:, plan.stage].tolist() for column in columns]
    passes = PassTimes.none(n_replicas, costs.n_stages)
    for step, start_ms, end_ms in zip(plan.instructions, trace.start_ms, trace.end_ms, strict=True):
        if not isinstance(step, Load | Forward | Backward | BackwardInput | BackwardWeight):
            continue
        forward, backward, weight, splitting = (each[step.microbatch] for each in of_microbatch)
        match step:
            case Load():
                parts, predicted_ms = [Timed.FORWARD], 0.0
            case Forward():
                parts, predicted_ms = [Timed.FORWARD], forward
            case Backward():
                parts, predicted_ms = [Timed.GRADIENT, Timed.WEIGHT], backward
            case BackwardInput():
                parts, predicted_ms = [Timed.GRADIENT], backward - weight + splitting
            case BackwardWeight():
                parts, predicted_ms = [Timed.WEIGHT], weight
        microbatch = plan.microbatches[step.microbatch]
        at = np.s_[microbatch.layout, microbatch.recompute, plan.stage, parts]
        passes.predicted_ms[at] += predicted_ms
        passes.measured_ms[at] += end_ms - start_ms
    rank = (plan.replica, plan.stage)
    passes.expected_ms[rank] = (factors * passes.predicted_ms).sum()
    passes.taken_ms[rank] = passes.measured_ms.sum()
    return passes
