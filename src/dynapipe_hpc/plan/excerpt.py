"""Excerpts of plans that show where something is wrong."""

from collections.abc import Mapping, Sequence

from dynapipe_hpc.plan.instruction import Instruction
from dynapipe_hpc.plan.text import rank_lines, symbol

_AROUND = 6


def excerpt(instructions: Sequence[Instruction], index: int) -> str:
    """The instructions around an index, as text with brackets around the one at that index.

    An index after the last instruction shows the end, with empty brackets.
    """
    first, end = max(index - _AROUND, 0), index + _AROUND + 1
    symbols = [symbol(instruction) for instruction in instructions[first:end]] + [""]
    symbols[index - first] = f"[{symbols[index - first]}]"
    before = ["..."] if first > 0 else []
    after = ["..."] if end < len(instructions) else []
    return " ".join([*before, *filter(None, symbols), *after])


def picture(excerpts: Mapping[int, str]) -> str:
    """Excerpts by rank, one per line, to follow a message that ends with a colon."""
    return "".join(f"\n  {line}" for line in rank_lines(excerpts))
