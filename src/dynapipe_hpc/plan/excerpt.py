"""Where in a plan something is wrong, as a picture."""

from collections.abc import Mapping, Sequence

from dynapipe_hpc.plan.instruction import Instruction
from dynapipe_hpc.plan.text import rank_lines, symbol

_AROUND = 6


def excerpt(instructions: Sequence[Instruction], position: int) -> str:
    """The instructions around a position, with brackets around the one at it.

    A position behind the last instruction shows the end, with empty brackets.
    """
    first, end = max(position - _AROUND, 0), position + _AROUND + 1
    symbols = [symbol(instruction) for instruction in instructions[first:end]] + [""]
    symbols[position - first] = f"[{symbols[position - first]}]"
    before = ["..."] if first > 0 else []
    after = ["..."] if end < len(instructions) else []
    return " ".join([*before, *filter(None, symbols), *after])


def picture(excerpts: Mapping[int, str]) -> str:
    """Excerpts of ranks below each other, to follow a message that ends with a colon."""
    return "".join(f"\n  {line}" for line in rank_lines(excerpts))
