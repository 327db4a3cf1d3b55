"""The authors' planner as a whole, to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.authors import AuthorsBatches
from dynapipe_hpc.planner.batch.config import AuthorsConfig
from dynapipe_hpc.planner.batch.replicas import balance_replicas
from dynapipe_hpc.planner.choice import Candidate, Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.search.authors_search import AuthorsSearch


@dataclass(frozen=True, slots=True)
class AuthorsPlanner:
    """One step after the other, none of which looks at what comes of it.

    Cuts samples, spreads the micro-batches by their times alone, and looks for the best mode,
    order and schedule on each replica by itself.

    Attributes:
        batches: Forms micro-batches.
        search: Schedules those of a replica.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, and its artifact.
    """

    batches: AuthorsBatches
    search: AuthorsSearch

    @classmethod
    def of(cls, config: AuthorsConfig) -> Self:
        """With the settings of a [planner.batch] table."""
        return cls(AuthorsBatches(config.interval_ms), AuthorsSearch(config.seed))

    def choose(self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster) -> Choice:
        """The one plan that is made, see `Planner.choose`."""
        microbatches = self.batches(samples, cost, cluster)
        replicas = balance_replicas(microbatches, cost, cluster.n_replicas)
        chosen = [[microbatches[i] for i in replica] for replica in replicas]
        pipelines = [self.search(replica, cost, cluster) for replica in chosen]
        return Choice((Candidate(str(self.batches), pipelines, cost),))
