"""Which instruction it is, in words."""

from dynapipe_hpc.plan.instruction import (
    Instruction,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import symbol


def place_of(plan: RankPlan, index: int) -> str:
    """Iteration, rank and instruction, with its micro-batch's shape and its peer, if any."""
    instruction = plan.instructions[index]
    parts = [f"iteration {plan.iteration}", f"rank {plan.rank}"]
    parts.append(f"instruction {index} ({type(instruction).__name__} {symbol(instruction)})")
    shape, peer = shape_of(plan, instruction), peer_of(plan, instruction)
    if shape:
        parts.append(f"micro-batch {shape}")
    if peer is not None:
        parts.append(f"peer {peer}")
    return ", ".join(parts)


def shape_of(plan: RankPlan, instruction: Instruction) -> str:
    """Number and shape of an instruction's micro-batch; nothing if it has none."""
    if isinstance(instruction, ReduceGradients | StepOptimizer):
        return ""
    m = plan.microbatches[instruction.microbatch]
    targets = f" + {m.target_tokens}" if m.target_tokens else ""
    return f"{instruction.microbatch} of {m.n_rows} x {m.row_tokens}{targets} tokens"


def peer_of(plan: RankPlan, instruction: Instruction) -> int | None:
    """The rank at the other end of a transfer, as plans number it."""
    match instruction:
        case StartSend() | StartReceive():
            return instruction.peer
        case WaitSend(i, payload):
            return _peer_of_start(plan, StartSend, i, payload)
        case WaitReceive(i, payload):
            return _peer_of_start(plan, StartReceive, i, payload)
        case _:
            return None


def _peer_of_start(
    plan: RankPlan, kind: type[StartSend | StartReceive], microbatch: int, payload: Payload
) -> int | None:
    """A wait does not say who it waits for; its start does."""
    for other in plan.instructions:
        if isinstance(other, kind) and (other.microbatch, other.payload) == (microbatch, payload):
            return other.peer
    return None
