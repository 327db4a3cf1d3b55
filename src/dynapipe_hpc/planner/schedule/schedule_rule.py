"""The order in which every stage runs its passes."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts

INSTANT = Link(latency_ms=0.0, bytes_per_ms=math.inf)
"""A link whose transfers take no time."""


class InfeasibleScheduleError(InputError):
    """A rule has no order in which the micro-batches keep within the memory of every stage."""


class PassKind(IntEnum):
    """What a pass computes.

    Attributes:
        FORWARD: Activations, from the first stage to the last.
        BACKWARD: Gradients, from the last stage to the first: of inputs and of weights, or in a
            schedule that splits backward passes, of inputs only.
        WEIGHT: Gradients of weights, at any time after BACKWARD on the same stage.
    """

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2


class Pass(NamedTuple):
    """One micro-batch in one computation of a stage."""

    kind: PassKind
    microbatch: int

    def __str__(self) -> str:
        """F3 is the forward pass of micro-batch 3, B3 its backward pass, W3 that of weights."""
        return f"{self.kind.name[0]}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Per stage, its passes in order.

    Every stage has F and B of each micro-batch. A schedule that splits backward passes has W of
    each micro-batch, too: B then takes `backward_ms - weight_ms`, W `weight_ms`, both need the
    backward transient memory, and what F stored is freed when W ends.
    """

    passes: tuple[tuple[Pass, ...], ...]


class ScheduleRule(Protocol):
    """Orders the passes of a replica's micro-batches.

    Contract: every pass exactly once; simulated, the schedule runs to its end, and no stage
    ever needs more than its limit, transient memory included. What a stage needs depends on
    the order of its passes alone, not on time, so a rule can tell and none leaves it to others.
    """

    def __call__(
        self, costs: StageCosts, activation_limit_bytes: FloatArray, link: Link = INSTANT, /
    ) -> Schedule:
        """Orders micro-batches 0, 1, ... which enter the pipeline in this order.

        Args:
            costs: Of the replica's micro-batches.
            activation_limit_bytes: Shape (n_stages,): device memory less static memory.
            link: Between neighbouring stages, for rules that look at times.

        Raises:
            InfeasibleScheduleError: The rule has no order within the limit.
        """
        ...
