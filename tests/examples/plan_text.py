"""Plans read back from their text."""

import re
from collections.abc import Callable

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

_PAYLOADS = {"a": Payload.ACTIVATION, "g": Payload.GRADIENT}
_RANK = re.compile(r"\s*rank +(\d+) *\|(.*)")
_TOKEN_FORMS: tuple[tuple[str, Callable[[re.Match[str]], Instruction]], ...] = (
    (r"L(N)", lambda m: Load(int(m[1]))),
    (r"F(N)", lambda m: Forward(int(m[1]))),
    (r"B(N)", lambda m: Backward(int(m[1]))),
    (r"I(N)", lambda m: BackwardInput(int(m[1]))),
    (r"W(N)", lambda m: BackwardWeight(int(m[1]))),
    (r"([ag])(N)>(N)", lambda m: StartSend(int(m[2]), _PAYLOADS[m[1]], int(m[3]))),
    (r"([ag])(N)>!", lambda m: WaitSend(int(m[2]), _PAYLOADS[m[1]])),
    (
        r"([ag])(N)<(N)@(N)",
        lambda m: StartReceive(int(m[2]), _PAYLOADS[m[1]], int(m[3]), int(m[4])),
    ),
    (r"([ag])(N)<!", lambda m: WaitReceive(int(m[2]), _PAYLOADS[m[1]])),
    (r"reduce", lambda _: ReduceGradients()),
    (r"step", lambda _: StepOptimizer()),
)
_TOKENS = tuple(
    (re.compile(form.replace("N", "0|[1-9][0-9]*")), make) for form, make in _TOKEN_FORMS
)


def parse_grid(text: str) -> dict[int, tuple[Instruction, ...]]:
    """Instructions of every rank; empty lines are skipped."""
    instructions: dict[int, tuple[Instruction, ...]] = {}
    for line in filter(str.strip, text.splitlines()):
        match = _RANK.fullmatch(line)
        assert match and int(match[1]) not in instructions, line
        instructions[int(match[1])] = tuple(map(_parse, match[2].split()))
    return instructions


def _parse(token: str) -> Instruction:
    (found,) = [make(match) for form, make in _TOKENS if (match := form.fullmatch(token))]
    return found
