"""The micro-batches of the authors' planner, as a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import order_pairs, order_samples
from dynapipe_hpc.planner.batch.price_windows import price_windows
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.cost.cost_model import CostModel
from reproduce.authors.grid_split import GridCut, grid_split
from reproduce.authors.window_times import window_times_ms


class NoCutError(InputError):
    """The authors' planner finds no micro-batches although there are some."""


@dataclass(frozen=True, slots=True)
class AuthorsBatches:
    """Cuts samples with a limit on a grid, all in the first mode and share of memory that do.

    A micro-batch may keep 1 / n_stages of the memory that the model leaves, and only if that
    suffices in no mode, all of it; on every stage as much as on the one with the largest model.

    Attributes:
        interval_ms: Least distance between the limits on a micro-batch's time.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, and its artifact.
    """

    interval_ms: float = 5.0

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"authors, limits {self.interval_ms:g} ms apart"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas.

        Raises:
            NoCutError: The samples fit, but not as this rule wants them to.
        """
        ordered = (order_pairs if cost.is_encoder_decoder else order_samples)(samples)
        cuts = self.cut(ordered, cost, cluster)
        if cuts is None:
            price_windows(ordered, cost, cluster)  # names a sample too large
            raise NoCutError(
                "the samples fit, but the authors' rule wants all of them in one mode of "
                "recomputation, in the memory that is free on the fullest stage, and within one of "
                f"its limits on time, {self.interval_ms:g} ms apart; lower "
                "interval_ms, raise cluster.device_memory_bytes, or use another planner"
            )
        cut, mode = cuts
        ends = np.cumsum(cut.sizes)
        return [
            padded_microbatch(ordered[end - size : end], mode, cost.is_encoder_decoder)
            for size, end in zip(cut.sizes, ends, strict=True)
        ]

    def cut(
        self, ordered: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> tuple[GridCut, Recompute] | None:
        """Cuts of samples in order, and the mode of all; None if nothing is feasible."""
        least_bytes = activation_room_bytes(cost, cluster).min()
        room_bytes = np.full(cluster.n_stages, least_bytes)
        for memory_share, mode in product((1 / cluster.n_stages, 1.0), cost.recompute_modes):
            times_ms = window_times_ms(
                ordered, cost, room_bytes, memory_share=memory_share, recompute=mode
            )
            singles = times_ms.astype(np.float32)
            cut = grid_split(singles, cluster.n_stages, cluster.n_replicas, self.interval_ms)
            if cut is not None:
                return cut, mode
        return None
