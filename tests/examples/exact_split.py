"""The exact split of ordered samples, as the kernel finds it, as micro-batches."""

from collections.abc import Sequence

from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.windows.price_windows import PADDED_ONLY, price_windows
from dynapipe_hpc.planner.cost.cost_model import CostModel


def split_samples(
    samples: Sequence[Sample],
    cost: CostModel,
    cluster: Cluster,
    *,
    layouts: Sequence[Layout] = PADDED_ONLY,
    token_multiple: int = ROW_MULTIPLE,
) -> list[MicroBatch]:
    table = price_windows(
        samples, cost, cluster, layouts, token_multiple=token_multiple, may_bundle=True
    )
    return table.microbatches_of(table.split(cluster.n_replicas))
