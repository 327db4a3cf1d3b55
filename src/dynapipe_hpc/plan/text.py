"""Plans as text: one line per rank, which can be parsed.

    rank 0 | L0 F0 a0>1 g0<1@0 a0>! g0<! B0 reduce step
    rank 1 | a0<0@0 L0 a0<! F0 B0 g0>0 g0>! reduce step

`L0 F0 B0` are Load, Forward and Backward of micro-batch 0; `I0 W0` are BackwardInput and
BackwardWeight, instead of `B0`. A transfer consists of its payload (`a` activation, `g` gradient),
micro-batch, direction (`>` out, `<` in) and peer: `a0>1` starts a send to rank 1, `a0<0@2` starts a
receive from rank 0 into slot 2. With `!` instead of the peer it is a wait: `a0>!` for the send,
`a0<!` for the receive.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from dynapipe_hpc.plan.errors import PlanTextError
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan

_LETTERS = "ag"  # Payload.ACTIVATION and Payload.GRADIENT
_RANK = re.compile(r"\s*rank +(\d{1,9}) *\|(.*)")
_TOKEN_FORMS: tuple[tuple[str, Callable[[re.Match[str]], Instruction]], ...] = (
    (r"L(N)", lambda m: Load(int(m[1]))),
    (r"F(N)", lambda m: Forward(int(m[1]))),
    (r"B(N)", lambda m: Backward(int(m[1]))),
    (r"I(N)", lambda m: BackwardInput(int(m[1]))),
    (r"W(N)", lambda m: BackwardWeight(int(m[1]))),
    (r"([ag])(N)>(N)", lambda m: StartSend(int(m[2]), _payload(m), int(m[3]))),
    (r"([ag])(N)>!", lambda m: WaitSend(int(m[2]), _payload(m))),
    (r"([ag])(N)<(N)@(N)", lambda m: StartReceive(int(m[2]), _payload(m), int(m[3]), int(m[4]))),
    (r"([ag])(N)<!", lambda m: WaitReceive(int(m[2]), _payload(m))),
    (r"reduce", lambda _: ReduceGradients()),
    (r"step", lambda _: StepOptimizer()),
)
_TOKENS = tuple(
    (re.compile(form.replace("N", "0|[1-9][0-9]{0,8}")), make) for form, make in _TOKEN_FORMS
)


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
    """Plans as text, one line per rank; `parse_grid` is its inverse."""
    texts = {plan.rank: " ".join(map(symbol, plan.instructions)) for plan in plans}
    return "\n".join(rank_lines(texts))


def parse_grid(text: str) -> dict[int, tuple[Instruction, ...]]:
    """Parses the instructions of every rank from a grid; empty lines are skipped.

    Raises:
        PlanTextError: A line does not start with a rank, a rank comes twice, or a token is not an
            instruction.
    """
    instructions: dict[int, tuple[Instruction, ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        match = _RANK.fullmatch(line)
        if match is None:
            raise PlanTextError(f'line {number}: {line!r} does not start with "rank NUMBER |"')
        rank = int(match[1])
        if rank in instructions:
            raise PlanTextError(f"line {number}: rank {rank} already has a line; remove one")
        tokens = enumerate(match[2].split(), start=1)
        instructions[rank] = tuple(
            _parse(token, f"line {number}, token {k}") for k, token in tokens
        )
    return instructions


def _parse(token: str, where: str) -> Instruction:
    for form, make in _TOKENS:
        if match := form.fullmatch(token):
            return make(match)
    raise PlanTextError(
        f"{where}: {token!r} is not an instruction; expected one like "
        "L0 F0 B0 I0 W0 a0>1 a0>! a0<1@0 a0<! g0>1 g0<! reduce step"
    )


def _payload(match: re.Match[str]) -> Payload:
    return Payload(_LETTERS.index(match[1]))
