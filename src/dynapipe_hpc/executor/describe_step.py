"""Description of one instruction of a plan, for messages."""

from dynapipe_hpc.plan.instruction import (
    Instruction,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan, symbol


def describe_step(plan: RankPlan, index: int) -> str:
    """Iteration, rank and instruction as text, with its micro-batch's shape and its peer, if any.

    Plans of an evaluation have the number of their batch in place of an iteration.
    """
    instruction = plan.instructions[index]
    of = "evaluation, batch" if plan.is_forward_only else "iteration"
    parts = [f"{of} {plan.iteration}", f"rank {plan.rank}"]
    parts.append(f"instruction {index} ({type(instruction).__name__} {symbol(instruction)})")
    shape, peer = shape_of(plan, instruction), peer_of(plan, instruction)
    if shape:
        parts.append(f"micro-batch {shape}")
    if peer is not None:
        parts.append(f"peer {peer}")
    return ", ".join(parts)


def shape_of(plan: RankPlan, instruction: Instruction) -> str:
    """Index and shape of an instruction's micro-batch as text; empty if it has none."""
    if isinstance(instruction, ReduceGradients | StepOptimizer):
        return ""
    m = plan.microbatches[instruction.microbatch]
    targets = f" + {m.target_tokens}" if m.target_tokens else ""
    return f"{instruction.microbatch} of {m.n_rows} x {m.row_tokens}{targets} tokens"


def peer_of(plan: RankPlan, instruction: Instruction) -> int | None:
    """The rank at the other end of a transfer, as plans number it; None if there is none."""
    match instruction:
        case StartSend() | StartReceive():
            return instruction.peer
        case WaitSend(i, payload) | WaitReceive(i, payload):
            kind = StartSend if isinstance(instruction, WaitSend) else StartReceive
            starts = (each for each in plan.instructions if isinstance(each, kind))
            # A wait does not name the peer; its start does.
            own_transfer = (i, payload)
            peers = (s.peer for s in starts if (s.microbatch, s.payload) == own_transfer)
            return next(peers, None)
        case _:
            return None
