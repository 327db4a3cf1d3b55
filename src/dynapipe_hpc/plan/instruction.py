"""Instructions: the steps of a plan. Each docstring defines what its instruction does.

The names map one to one onto those of the paper (docs/glossary.md). Sends and receives are started
and waited for separately, so that transfers overlap computation.
"""

from dataclasses import dataclass
from enum import IntEnum


class Payload(IntEnum):
    """Kind of tensor that a transfer carries."""

    ACTIVATION = 0
    GRADIENT = 1


@dataclass(frozen=True, slots=True)
class Load:
    """Reads the tokens of a micro-batch, if this stage needs them."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Computes a micro-batch's activation from the one received (or loaded) and keeps it."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Computes a micro-batch's gradients from the one received and frees what Forward kept."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class BackwardInput:
    """Computes only the gradient of a micro-batch's input; BackwardWeight does the rest."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class BackwardWeight:
    """Computes a micro-batch's gradients of weights and frees what Forward kept.

    It may come at any time after the micro-batch's BackwardInput. A rank's plan splits every
    backward pass into these two, or none.
    """

    microbatch: int


@dataclass(frozen=True, slots=True)
class StartSend:
    """Starts sending the result of the micro-batch's last Forward, Backward or BackwardInput."""

    microbatch: int
    payload: Payload
    peer: int


@dataclass(frozen=True, slots=True)
class WaitSend:
    """Waits until a send started earlier no longer needs its tensor, and drops the tensor."""

    microbatch: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class StartReceive:
    """Starts receiving a tensor into a receive buffer.

    The buffer `slot` is in use from here until the micro-batch's Backward or BackwardWeight ends.
    """

    microbatch: int
    payload: Payload
    peer: int
    slot: int


@dataclass(frozen=True, slots=True)
class WaitReceive:
    """Waits until a receive started earlier has its tensor."""

    microbatch: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class ReduceGradients:
    """Sums the gradients of this stage over all replicas (data-parallel all-reduce)."""


@dataclass(frozen=True, slots=True)
class StepOptimizer:
    """Clips the gradients by their norm over all stages and updates the weights."""


Instruction = (
    Load
    | Forward
    | Backward
    | BackwardInput
    | BackwardWeight
    | StartSend
    | WaitSend
    | StartReceive
    | WaitReceive
    | ReduceGradients
    | StepOptimizer
)
