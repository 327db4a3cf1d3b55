"""Memory that stages have for activations, and what fits into it."""

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts

BoolArray = npt.NDArray[np.bool_]


class DoesNotFitError(InputError):
    """A sample or micro-batch that needs more memory than a stage has."""


class NotMeasuredError(InputError):
    """A sample or micro-batch for which the cost model has no time."""


def activation_room_bytes(cost: CostModel, cluster: Cluster) -> FloatArray:
    """Device memory less static memory, shape (n_stages,); negative if the model is too large."""
    return cluster.device_memory_bytes - cost.static_bytes


def activation_bytes(costs: StageCosts) -> FloatArray:
    """Peak activation memory of micro-batches that run alone, shape (n_microbatches, n_stages)."""
    transient = np.maximum(costs.forward_transient_bytes, costs.backward_transient_bytes)
    return costs.stored_bytes + transient


def fits(costs: StageCosts, room_bytes: FloatArray) -> BoolArray:
    """Whether micro-batches can run alone, shape (n_microbatches,)."""
    possible = np.isfinite(costs.work_ms) & (activation_bytes(costs) <= room_bytes)
    return np.asarray(possible.all(axis=1))


def misfit_error(
    subject: str, costs: StageCosts, cost: CostModel, cluster: Cluster, *, way_out: str
) -> InputError:
    """The error for something that cannot run."""
    if not np.isfinite(costs.work_ms).all() or not np.isfinite(activation_bytes(costs)).all():
        return NotMeasuredError(
            f"{subject} lies outside of what the cost model knows: it was not measured, or ran "
            f"out of memory when measured; measure larger micro-batches{_more_modes(cost)}, or "
            f"{way_out}"
        )
    needed = cost.static_bytes + activation_bytes(costs)[0]
    stage = int(np.argmax(needed))
    return DoesNotFitError(
        f"{subject} needs {needed[stage]:,.0f} bytes on stage {stage}, of which "
        f"{cost.static_bytes[stage]:,.0f} for the model, but cluster.device_memory_bytes is "
        f"{cluster.device_memory_bytes:,}; raise it, add stages{_more_modes(cost)}, or {way_out}"
    )


def _more_modes(cost: CostModel) -> str:
    if cost.recompute_modes[-1] is Recompute.FULL:
        return ""
    return ', allow "full" in planner.cost.recompute'
