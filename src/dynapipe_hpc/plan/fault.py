"""Messages about rules that plans break, with an excerpt of the plans."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, assert_never

from dynapipe_hpc.plan.excerpt import excerpt, picture
from dynapipe_hpc.plan.instruction import StartReceive, StartSend
from dynapipe_hpc.plan.rank_plan import RankPlan

# Symbols of plan text without numbers, in the order of the kernel's steps.
_STEPS = ("L", "a<", "a<!", "F", "a>", "a>!", "g<", "g<!", "B", "I", "W", "g>", "g>!")


class Rule(IntEnum):
    """Rules by the kernel's numbers; cpp/include/dynapipe/plan/check_pipeline.hpp defines them."""

    ENDING = 0
    PLACE = 1
    MICROBATCH = 2
    ONCE = 3
    NEEDS = 4
    PEER = 5
    SPLIT = 6
    SLOT = 7
    MEMORY = 8
    PAIR_ORDER = 9


class Fault(NamedTuple):
    """A broken rule that the kernel found in the plans of a replica.

    Attributes:
        rule: Number of the broken rule, see `Rule`.
        stage: Stage of the plan; for PAIR_ORDER, the first of two neighbours.
        position: Index of the instruction; for PAIR_ORDER, of the transfer between the two.
        microbatch: Index of the micro-batch, for NEEDS and SLOT.
        detail: Missing step (NEEDS), correct peer (PEER) or peak in bytes (MEMORY).
    """

    rule: int
    stage: int
    position: int
    microbatch: int
    detail: int


def describe(pipeline: Sequence[RankPlan], fault: Fault) -> str:
    """A message that says which rule the plans of a replica, by stage, break and shows where."""
    plan = pipeline[fault.stage]
    iteration = f"iteration {plan.iteration}"
    match rule := Rule(fault.rule):
        case Rule.PAIR_ORDER:
            return f"{iteration}: {_disagreement(pipeline, fault)}"
        case Rule.MEMORY:
            return (
                f"{iteration}: rank {plan.rank} needs {fault.detail} bytes at its peak, "
                f"but may use {plan.memory.limit}"
            )
        case _:
            shown = picture({plan.rank: excerpt(plan.instructions, fault.position)})
            return f"{iteration}: rank {plan.rank}: {_problem(plan, fault, rule)}:{shown}"


def _problem(plan: RankPlan, fault: Fault, rule: Rule) -> str:
    match rule:
        case Rule.ENDING:
            return "a plan must end with reduce and step, in this order"
        case Rule.PLACE:
            return "this is not allowed here"
        case Rule.MICROBATCH:
            return f"there are only {len(plan.microbatches)} micro-batches"
        case Rule.ONCE:
            return "this comes a second time"
        case Rule.NEEDS:
            step = _STEPS[fault.detail]
            return f"this needs {step[0]}{fault.microbatch}{step[1:]} before"
        case Rule.PEER:
            return f"the peer must be rank {fault.detail}"
        case Rule.SPLIT:
            return "a plan must split all backward passes of its rank or none"
        case Rule.SLOT:
            slot = plan.instructions.table[fault.position, -1]
            return f"slot {slot} is in use until {_last_pass(plan)}{fault.microbatch}"
        case Rule.MEMORY | Rule.PAIR_ORDER:
            raise ValueError(f"{rule} is not about one instruction")
        case _:
            assert_never(rule)


def _last_pass(plan: RankPlan) -> str:
    if plan.is_forward_only:
        return "F"
    return "W" if plan.splits_backward else "B"


def _disagreement(pipeline: Sequence[RankPlan], fault: Fault) -> str:
    one, other = pipeline[fault.stage : fault.stage + 2]
    shown = {
        plan.rank: excerpt(_transfers_with(peer.rank, plan), fault.position)
        for plan, peer in sorted([(one, other), (other, one)], key=lambda pair: pair[0].rank)
    }
    ranks = " and ".join(map(str, shown))
    return f"ranks {ranks} disagree on transfer {fault.position} between them:{picture(shown)}"


def _transfers_with(peer: int, plan: RankPlan) -> list[StartSend | StartReceive]:
    starts = (step for step in plan.instructions if isinstance(step, StartSend | StartReceive))
    return [start for start in starts if start.peer == peer]
