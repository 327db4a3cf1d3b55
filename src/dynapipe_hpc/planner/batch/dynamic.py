"""Dynamic micro-batching, the method of this project, as a batch rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.order import orders
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.batch.split import split_samples
from dynapipe_hpc.planner.cost.cost_model import CostModel


@dataclass(frozen=True, slots=True)
class DynamicBatches:
    """A batch rule that sorts samples and cuts them where the iteration is predicted shortest.

    Attributes:
        memory_share: Fraction of a stage's activation memory that one micro-batch may keep.
        layouts: Layouts of micro-batches.
        token_multiple: Multiple that rows are padded to.
    """

    memory_share: float = 1.0
    layouts: tuple[Layout, ...] = (Layout.PADDED,)
    token_multiple: int = ROW_MULTIPLE

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"dynamic, memory share {self.memory_share:g}"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[MicroBatch]:
        """Groups the samples of all replicas, see `BatchRule`."""
        ordered, *_ = orders(samples, cost.is_encoder_decoder).values()
        return split_samples(
            ordered,
            cost,
            cluster,
            memory_share=self.memory_share,
            layouts=self.layouts,
            token_multiple=self.token_multiple,
        )


def dynamic_rules(config: DynamicConfig, n_stages: int) -> list[DynamicBatches]:
    """One rule per share of memory; the fastest plan decides between them.

    Args:
        config: The [planner.batch] table.
        n_stages: Number of pipeline stages.
    """
    shares = config.memory_shares or _doubling_shares(n_stages)
    return [DynamicBatches(share, layouts_of(config), config.token_multiple) for share in shares]


def layouts_of(config: DynamicConfig) -> tuple[Layout, ...]:
    """Layouts of micro-batches to choose from, each once."""
    return tuple(sorted({Layout.from_text(name) for name in config.layouts}))


def _doubling_shares(n_stages: int) -> list[float]:
    """1 / n_stages, 2 / n_stages, ... and 1."""
    return [2**k / n_stages for k in range((n_stages - 1).bit_length())] + [1.0]
