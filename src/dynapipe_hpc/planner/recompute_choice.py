"""One mode of recomputation for all micro-batches of an iteration, as a baseline."""

import math
from collections.abc import Callable
from dataclasses import replace

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.choice import Candidate, Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.one_mode import OneMode
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def choose_one_mode(
    cost: CostModel, choose: Callable[[CostModel], Choice], *, only_first: bool
) -> Choice:
    """Plans an iteration in every mode by itself, least recomputation first.

    Args:
        cost: Its modes are tried.
        choose: Plans the iteration with the costs of one mode.
        only_first: Whether to stop at the first mode with a plan that keeps within memory.

    Returns:
        The candidates of the modes that were tried, each with its mode in its name.

    Raises:
        DoesNotFitError, NotMeasuredError, InfeasibleScheduleError: There is no plan in any mode;
            as of the last one, which keeps least.
    """
    candidates: list[Candidate] = []
    failures: list[InputError] = []
    for mode in cost.recompute_modes:
        try:
            choice = choose(OneMode(cost, mode))
        except (DoesNotFitError, NotMeasuredError, InfeasibleScheduleError) as error:
            failures.append(error)
            continue
        candidates += [replace(c, way=f"{c.way}, recompute {mode.text}") for c in choice.candidates]
        if only_first and math.isfinite(choice.best.makespan_ms):
            break
    if not candidates:
        raise failures[-1]
    return Choice(tuple(candidates))
