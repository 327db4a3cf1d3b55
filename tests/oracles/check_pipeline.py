"""The rules of plans, checked one after the other in Python."""

from collections.abc import Sequence

from tests.oracles.check_rank import Neighbours, check_rank
from tests.oracles.check_transfers import check_transfers
from tests.oracles.execute_plans import evaluates

from dynapipe_hpc.plan.errors import PlanError
from dynapipe_hpc.plan.rank_plan import RankPlan


def error_of(pipeline: Sequence[RankPlan]) -> str | None:
    """First fault in the plans of one replica, by stage."""
    ranks = [None, *(plan.rank for plan in pipeline), None]
    try:
        for stage, plan in enumerate(pipeline):
            neighbours = Neighbours(before=ranks[stage], behind=ranks[stage + 2])
            check_rank(plan, neighbours, only_forward=evaluates(pipeline))
        check_transfers(pipeline)
    except PlanError as error:
        return str(error)
    return None
