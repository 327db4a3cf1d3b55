"""Plans as text: one line per rank.

    rank 0 | L0 F0 a0>1 g0<1@0 a0>! g0<! B0 reduce step
    rank 1 | a0<0@0 L0 a0<! F0 B0 g0>0 g0>! reduce step

`L0 F0 B0` are Load, Forward and Backward of micro-batch 0; `I0 W0` are BackwardInput and
BackwardWeight, instead of `B0`. A transfer consists of its payload (`a` activation, `g` gradient),
micro-batch, direction (`>` out, `<` in) and peer: `a0>1` starts a send to rank 1, `a0<0@2` starts a
receive from rank 0 into slot 2. With `!` instead of the peer it is a wait: `a0>!` for the send,
`a0<!` for the receive.
"""

from collections.abc import Iterable, Mapping
from typing import assert_never

from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan

_LETTERS = "ag"  # Payload.ACTIVATION and Payload.GRADIENT


def symbol(instruction: Instruction) -> str:
    """One instruction as text, such as `a0>1`."""
    match instruction:
        case Load(i):
            return f"L{i}"
        case Forward(i):
            return f"F{i}"
        case Backward(i):
            return f"B{i}"
        case BackwardInput(i):
            return f"I{i}"
        case BackwardWeight(i):
            return f"W{i}"
        case StartSend(i, payload, peer):
            return f"{_LETTERS[payload]}{i}>{peer}"
        case WaitSend(i, payload):
            return f"{_LETTERS[payload]}{i}>!"
        case StartReceive(i, payload, peer, slot):
            return f"{_LETTERS[payload]}{i}<{peer}@{slot}"
        case WaitReceive(i, payload):
            return f"{_LETTERS[payload]}{i}<!"
        case ReduceGradients():
            return "reduce"
        case StepOptimizer():
            return "step"
        case _:
            assert_never(instruction)


def rank_lines(texts: Mapping[int, str]) -> list[str]:
    """One line per rank, `rank 0 | TEXT`, with aligned bars."""
    width = max((len(str(rank)) for rank in texts), default=0)
    return [f"rank {rank:>{width}} | {text}".rstrip() for rank, text in texts.items()]


def grid(plans: Iterable[RankPlan]) -> str:
    """Plans as text, one line per rank."""
    texts = {plan.rank: " ".join(map(symbol, plan.instructions)) for plan in plans}
    return "\n".join(rank_lines(texts))
