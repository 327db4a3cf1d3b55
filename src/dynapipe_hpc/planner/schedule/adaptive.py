"""The adaptive schedule: list scheduling with memory-aware injection."""

from dynapipe_hpc import _kernels
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import INSTANT, Schedule, kernel_link


def adaptive(
    costs: StageCosts, activation_limit_bytes: FloatArray, link: Link = INSTANT
) -> Schedule:
    """List scheduling: each stage runs what has arrived, backward passes first, as memory allows.

    Unlike the cyclic schedule it depends on times: a stage is idle only while nothing that it may
    run has arrived, whatever the micro-batches cost. Samples go first in, first out; of a sample
    that runs as slices, the last slice returns first.

    Source: The memory-aware injection of Jiang et al., "DynaPipe", EuroSys 2024,
    doi:10.1145/3627703.3629585, in simulated time instead of cycles.
    """
    return _list_schedule(costs, activation_limit_bytes, link, split_backward=False)


def adaptive_split(
    costs: StageCosts, activation_limit_bytes: FloatArray, link: Link = INSTANT
) -> Schedule:
    """An adaptive schedule whose weight gradients (W) are computed while a stage would be idle.

    W also runs when the memory that it frees is needed. Source of separate passes: Qi et al., "Zero
    Bubble Pipeline Parallelism", ICLR 2024, arXiv:2401.10241.
    """
    return _list_schedule(costs, activation_limit_bytes, link, split_backward=True)


def _list_schedule(
    costs: StageCosts, activation_limit_bytes: FloatArray, link: Link, *, split_backward: bool
) -> Schedule:
    codes = _kernels.list_schedule(
        costs.checked,
        activation_limit_bytes,
        kernel_link(link),
        split_backward,
        costs.later_slices,
        costs.reduce_ms,
    )
    return Schedule(codes)
