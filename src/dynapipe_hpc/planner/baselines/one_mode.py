"""One mode of recomputation for all micro-batches of an iteration, as a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.memory import DoesNotFitError, NotMeasuredError
from dynapipe_hpc.planner.choose.choice import Candidate, Choice, Infeasible
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError


@dataclass(frozen=True, slots=True)
class OneModeForAll:
    """Plans an iteration in every mode by itself, least recomputation first.

    Attributes:
        of_modes: Chooser for each mode, with the costs of that mode, in the order of the cost
            model.
        only_first: Whether to stop at the first mode with a plan that keeps within memory.
    """

    of_modes: Mapping[Recompute, Chooser]
    only_first: bool

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """The plans of the modes that were tried, each with its mode in its name.

        Raises:
            DoesNotFitError, NotMeasuredError, InfeasibleScheduleError: There is no plan in any
                mode; the error is that of the last one, which keeps least.
        """
        tried: list[Candidate | Infeasible] = []
        failures: list[InputError] = []
        for mode, chooser in self.of_modes.items():
            try:
                choice = chooser.choose(samples)
            except (DoesNotFitError, NotMeasuredError, InfeasibleScheduleError) as error:
                failures.append(error)
                continue
            tried += [replace(t, way=f"{t.way}, recompute {mode.text}") for t in choice.tried]
            if self.only_first and choice.candidates:
                break
        if not tried:
            raise failures[-1]
        return Choice(tuple(tried))
