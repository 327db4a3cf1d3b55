"""What a rank does, one step at a time. An instruction's docstring is its meaning.

The names map one to one onto the paper's (docs/glossary.md). Sends and receives are started
and waited for separately, so that transfers overlap computation.
"""

from dataclasses import dataclass
from enum import IntEnum


class Payload(IntEnum):
    """What a transfer carries."""

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
    """Computes the gradient of a micro-batch's input alone; BackwardWeight does the rest."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class BackwardWeight:
    """Computes a micro-batch's gradients of weights and frees what Forward kept.

    It comes at any time after the micro-batch's BackwardInput. A rank's plan splits every
    backward pass into these two or none.
    """

    microbatch: int


@dataclass(frozen=True, slots=True)
class StartSend:
    """Starts sending what the last Forward, Backward or BackwardInput of the micro-batch made."""

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
    """Adds up the gradients of this stage over all replicas."""


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
