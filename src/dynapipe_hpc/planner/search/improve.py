"""Improves the plan of an iteration by local search on the simulated makespan."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.candidates import candidates
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.search.config import SearchConfig

Windows = npt.NDArray[np.uint32]


def improve(
    replicas: Sequence[Sequence[MicroBatch]],
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    config: SearchConfig,
) -> list[list[MicroBatch]]:
    """Changes micro-batches, their order, modes and replicas for a shorter iteration.

    Args:
        replicas: Per replica its padded micro-batches of neighbouring samples, in the order in
            which they enter the pipeline.
        samples: All samples of the iteration, in any order.
        cost: Predicts time and memory.
        cluster: Whose memory limits what may be in flight, and whose link takes time.
        config: How many changes are tried.

    Returns:
        The same samples in the best micro-batches found, by the makespan of the adaptive
        schedule; never worse by that measure.
    """
    ordered, *_ = orders(samples, cost.is_encoder_decoder).values()
    choice = candidates(ordered, cost, cluster)
    found, _ = _kernels.improve_plan(
        choice.costs.table,
        choice.cells,
        choice.row_of_sample,
        _windows(replicas, ordered, cost.recompute_modes),
        activation_room_bytes(cost, cluster),
        cluster.link.latency_ms,
        cluster.link.bytes_per_ms,
        cluster.link.full_duplex,
        config.moves,
        config.seed,
    )
    return [[choice.microbatch(*window) for window in windows.tolist()] for windows in found]


def _windows(
    replicas: Sequence[Sequence[MicroBatch]],
    ordered: Sequence[Sample],
    modes: Sequence[Recompute],
) -> list[Windows]:
    """Per replica, first sample, number of samples and mode of every micro-batch."""
    place = {sample.sample_id: i for i, sample in enumerate(ordered)}
    return [
        np.array(
            [(place[m.sample_ids[0]], m.n_rows, modes.index(m.recompute)) for m in replica],
            np.uint32,
        )
        for replica in replicas
    ]
