"""The [planner.search] table: effort of the search."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable

LARGEST = 2**63 - 1


class SearchConfig(ConfigTable):
    """The [planner.search] table: effort of local search.

    Attributes:
        effort: Number of passes (of a micro-batch through a stage) to schedule in the search; a
            core does some 50 million per second. 0 takes the best of the plans that the search
            would begin with. It is a count rather than a time, so that the same samples give the
            same plan on every machine, and counts passes rather than moves, so that large plans
            take no longer. Each order of the samples, and plans with slices if allowed, have a
            search of this effort; a search whose best plan is clearly longer than another's after
            12,500 passes is dropped. The first round of a search has 6,250 passes; each later round
            has as many as all rounds before it. No round that would exceed the effort is begun.
        seed: Seed of the random moves.
    """

    effort: int = Field(default=100_000, ge=0, le=LARGEST)
    seed: int = Field(default=0, ge=0, le=LARGEST)
