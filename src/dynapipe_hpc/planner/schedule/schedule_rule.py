"""Schedules (the order of passes on every stage), and the rules that make them."""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts

CodeArray = npt.NDArray[np.int32]

INSTANT = Link(latency_ms=0.0, bytes_per_ms=math.inf)
"""A link whose transfers take no time."""


class InfeasibleScheduleError(InputError):
    """A rule finds no order in which the micro-batches keep within the memory of every stage."""


class PassKind(IntEnum):
    """Kind of a pass: what it computes.

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
        """Text such as F3, B3 or W3: the forward, backward or weight pass of micro-batch 3."""
        return f"{self.kind.name[0]}{self.microbatch}"


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The passes of every stage, in order.

    Every stage has F and B of each micro-batch, or only F in an evaluation. A schedule that splits
    backward passes also has W of each: B then takes `backward_ms - weight_ms + splitting_ms` and W
    `weight_ms`, both need the backward transient memory, and the activations stored by F are freed
    when W ends.

    Attributes:
        codes: 3 * microbatch + kind of every pass, shape (n_stages, n_passes), as the kernels read
            and write it.
    """

    codes: CodeArray

    def __eq__(self, other: object) -> bool:
        """Whether all stages have the same passes in the same order."""
        return isinstance(other, Schedule) and np.array_equal(self.codes, other.codes)

    def __str__(self) -> str:
        """The passes in order, a line per stage: `F0 F1 B0 B1`, or `F0 F1 B0 W0 B1 W1`."""
        return "\n".join(" ".join(map(str, row)) for row in self.passes)

    def __hash__(self) -> int:
        """Hash of the codes, equal for equal schedules."""
        return hash(self.codes.tobytes())

    @property
    def passes(self) -> tuple[tuple[Pass, ...], ...]:
        """The passes of every stage."""
        n_kinds = len(PassKind)
        return tuple(
            tuple(Pass(PassKind(code % n_kinds), code // n_kinds) for code in row)
            for row in self.codes.tolist()
        )


class ScheduleRule(Protocol):
    """A rule that orders the passes of a replica's micro-batches.

    Contract: every pass occurs exactly once; the schedule does not deadlock in the simulation. Each
    micro-batch fits on every stage alone. A rule whose order depends on costs lets no stage need
    more than its limit, transient memory included; a fixed order that exceeds a limit is not used.
    """

    def __call__(
        self, costs: StageCosts, activation_limit_bytes: FloatArray, link: Link = INSTANT, /
    ) -> Schedule:
        """Orders micro-batches 0, 1, ... which enter the pipeline in this order.

        The limit is device memory less static memory, shape (n_stages,).

        Raises:
            InfeasibleScheduleError: The rule has no order for these micro-batches.
        """
        ...


def kernel_link(link: Link) -> _kernels.Link:
    """The same link as an argument for kernels."""
    return _kernels.Link(link.latency_ms, link.bytes_per_ms, link.full_duplex)
