"""Tables of plans, made of values."""

from collections.abc import Iterable

import numpy as np

from dynapipe_hpc.plan.instruction import COLUMNS, KINDS, Instruction, InstructionRows
from dynapipe_hpc.plan.rank_plan import PassSpans


def rows_of(instructions: Iterable[Instruction]) -> InstructionRows:
    """Instructions as kernels write them."""
    rows = []
    for each in instructions:
        values = [getattr(each, field) for field in type(each).__match_args__]
        rows.append([KINDS.index(type(each)), *values, *[0] * (COLUMNS - 1 - len(values))])
    return InstructionRows(np.array(rows, np.uint32).reshape(-1, COLUMNS))


def spans_of(times_ms: Iterable[tuple[float, float]]) -> PassSpans:
    """Start and end of every pass, as a simulation finds them."""
    return PassSpans(np.array(list(times_ms), np.float64).reshape(-1, 2))
