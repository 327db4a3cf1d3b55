"""The authors' planner as a whole, to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.order import balance_replicas
from dynapipe_hpc.planner.choose.choice import Candidate, Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel
from reproduce.authors.authors_batches import AuthorsBatches
from reproduce.authors.authors_search import AuthorsSearch


@dataclass(frozen=True, slots=True)
class AuthorsPlanner:
    """One step after the other, none of which looks at what comes of it.

    Cuts samples, spreads the micro-batches by their times alone, and looks for the best mode,
    order and schedule on each replica by itself.

    Attributes:
        batches: Forms micro-batches.
        search: Schedules those of a replica.
        cost: Predicts time and memory.
        cluster: What the plans are for.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, and its artifact.
    """

    batches: AuthorsBatches
    search: AuthorsSearch
    cost: CostModel
    cluster: Cluster

    @classmethod
    def with_interval(cls, cost: CostModel, cluster: Cluster, interval_ms: float = 5.0) -> Self:
        """The planner with limits this far apart: 0.005 ms in the paper, 5 ms in its artifact."""
        return cls(AuthorsBatches(interval_ms), AuthorsSearch(), cost, cluster)

    def choose(self, samples: Sequence[Sample]) -> Choice:
        """A choice of one plan, see `Chooser`."""
        cost, cluster = self.cost, self.cluster
        microbatches = self.batches(samples, cost, cluster)
        replicas = balance_replicas(microbatches, cost, cluster.n_replicas)
        chosen = [[microbatches[i] for i in replica] for replica in replicas]
        pipelines = [self.search(replica, cost, cluster) for replica in chosen]
        return Choice((Candidate(str(self.batches), pipelines, cost),))
