"""The paper's algorithm 1 as it is printed: lists of ready passes, and a cycle over the stages."""

from tests.examples.schedule_text import schedule_of

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule


def cyclic_order(costs: StageCosts, limit_bytes: FloatArray) -> Schedule:
    """Orders passes; a forward pass starts where memory suffices to the end of its backward."""
    n = costs.n_stages
    orders: list[list[Pass]] = [[] for _ in range(n)]
    forward: list[list[int]] = [[] for _ in range(n)]
    backward: list[list[int]] = [[] for _ in range(n)]
    kept: list[list[int]] = [[] for _ in range(n)]
    forward[0] = list(range(costs.n_microbatches))
    while any(forward) or any(backward):
        unlocked: list[tuple[list[int], int]] = []
        for j in range(n):
            if backward[j]:
                i = backward[j].pop(0)
                kept[j].remove(i)
                orders[j].append(Pass(PassKind.BACKWARD, i))
                if j > 0:
                    unlocked.append((backward[j - 1], i))
            if forward[j] and _fits(costs, j, kept[j] + forward[j][:1], float(limit_bytes[j])):
                i = forward[j].pop(0)
                kept[j].append(i)
                orders[j].append(Pass(PassKind.FORWARD, i))
                unlocked.append((forward[j + 1] if j + 1 < n else backward[j], i))
        for ready, i in unlocked:
            ready.append(i)
    return schedule_of(orders)


def _fits(costs: StageCosts, stage: int, kept: list[int], limit: float) -> bool:
    """Whether the last of `kept` can run forward now, and then all of them backward in order."""
    stored = costs.stored_bytes[:, stage]
    needs = [float(stored[kept].sum() + costs.forward_transient_bytes[kept[-1], stage])]
    for n_gone, i in enumerate(kept):
        left = stored[kept[n_gone:]].sum()
        needs.append(float(left + costs.backward_transient_bytes[i, stage]))
    return max(needs) <= limit
