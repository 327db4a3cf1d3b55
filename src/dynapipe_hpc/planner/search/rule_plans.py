"""Plans of batch rules as windows of the samples, from which a search may start."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.planner.batch.dynamic import DynamicBatches
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.replicas import balance
from dynapipe_hpc.planner.batch.split import splits
from dynapipe_hpc.planner.batch.windows.window_table import WindowTable
from dynapipe_hpc.planner.search.space import Replicas, Windows


class RulePlan(NamedTuple):
    """Micro-batches of a batch rule, assigned to replicas.

    Attributes:
        way: Names of all rules that form these micro-batches.
        replicas: Windows of every replica, in the order of the samples.
    """

    way: str
    replicas: Replicas


def rule_plans(
    rules: Sequence[DynamicBatches], windows: WindowTable, n_replicas: int
) -> Iterator[RulePlan]:
    """The plan of every rule, and variants with more recomputation, without duplicates.

    A micro-batch that takes longer but keeps less memory lets later ones start earlier; only the
    simulation shows which is better.

    Args:
        rules: Batch rules, which cut the samples.
        windows: Windows of the ordered samples, and their costs.
        n_replicas: Replicas that share the work; rules with fewer micro-batches have no plan.
    """
    rules_of: dict[bytes, tuple[Windows, list[str]]] = {}
    shares = sorted({rule.memory_share for rule in rules}, reverse=True)
    cuts = dict(zip(shares, splits(windows, n_replicas, shares), strict=True))
    for rule in rules:
        split = np.array(cuts[rule.memory_share], np.uint32)
        for cut in _with_more_recompute(split, windows):
            rules_of.setdefault(cut.tobytes(), (cut, []))[1].append(str(rule))
    for cut, agreeing in rules_of.values():
        if len(cut) >= n_replicas:
            work_ms = bottleneck_ms(windows.costs.take(windows.cells_of(cut).astype(np.int64)))
            dealt = [cut[replica] for replica in balance(work_ms, n_replicas)]
            yield RulePlan(" = ".join(dict.fromkeys(agreeing)), dealt)


def _with_more_recompute(cut: Windows, windows: WindowTable) -> Iterator[Windows]:
    """The same windows, for each mode with at least its recomputation, if all may be used so."""
    modes = windows.modes
    for recompute in sorted({mode.recompute for mode in modes}):
        changed = cut.copy()
        least = [modes.index(m._replace(recompute=max(m.recompute, recompute))) for m in modes]
        changed[:, 2] = np.array(least)[cut[:, 2]]
        if (windows.cells_of(changed) >= 0).all():
            yield changed
