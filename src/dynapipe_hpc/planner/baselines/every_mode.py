"""One mode of recomputation for all micro-batches of an iteration, as a baseline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


def in_every_mode(
    cost: CostModel, choose: Callable[[CostModel], Choice], *, only_first: bool = False
) -> Choice:
    """Plans an iteration in every mode separately, least recomputation first.

    `only_first`: Whether to stop at the first mode with a plan that keeps within memory. Raises
    `DoesNotFitError` or `NotMeasuredError` or `InfeasibleScheduleError`: There is no plan in any
    mode; the error is that of the last one, which keeps least.
    """
    tried: list[Candidate | Infeasible] = []
    failures: list[InputError] = []
    for mode in cost.recompute_modes:
        try:
            choice = choose(cost.of_mode(mode))
        except (DoesNotFitError, NotMeasuredError, InfeasibleScheduleError) as error:
            failures.append(error)
            continue
        tried += [replace(t, way=f"{t.way}, recompute {mode.text}") for t in choice.tried]
        if only_first and choice.candidates:
            break
    if not tried:
        raise failures[-1]
    return Choice(tuple(tried))


@dataclass(frozen=True, slots=True)
class OneModeSearch:
    """A search in every mode, see `in_every_mode`, for `planner.batch.recompute_choice`.

    `only_first`: Whether to stop at the first mode with a plan that keeps within memory.
    """

    chooser_of: Callable[[CostModel], Chooser]
    cost: CostModel
    only_first: bool

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of the modes, see `Chooser`."""
        return in_every_mode(
            self.cost,
            lambda cost: self.chooser_of(cost).choose(samples),
            only_first=self.only_first,
        )
