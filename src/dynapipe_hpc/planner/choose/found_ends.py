"""Ends of the iterations that a search has found so far."""

import math
from dataclasses import dataclass, field

REFINABLE = 1.1
"""Ratio to the shortest iteration up to which schedules are refined.

More than refinement has ever gained: 5.9 % where few micro-batches were given, and 1.4 % in plans
that a search found (docs/decisions/0004).
"""


@dataclass(frozen=True, slots=True)
class BestMakespans:
    """Ends of iterations, by the effort that found them."""

    _found: list[tuple[int, float]] = field(default_factory=list, init=False)

    def add(self, effort: int, iteration_ms: float) -> None:
        """Adds the end of an iteration."""
        self._found.append((effort, iteration_ms))

    @property
    def least_ms(self) -> float:
        """Soonest end; infinite if there is none."""
        return min((ms for _, ms in self._found), default=math.inf)

    def is_refinable(self, effort: int, iteration_ms: float) -> bool:
        """Whether an iteration that ends then may become the shortest by refinement.

        What more effort found does not count: a search with less must refine the same plans.
        """
        of_less = (ms for before, ms in self._found if before <= effort)
        return iteration_ms < REFINABLE * min(of_less, default=math.inf)
