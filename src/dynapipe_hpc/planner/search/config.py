"""The [planner.search] table: how hard a better plan is looked for."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable

LARGEST = 2**63 - 1


class SearchConfig(ConfigTable):
    """Plans are constructed by rules, the best improved by local search, its schedules refined.

    Attributes:
        effort: Passes of micro-batches through stages to schedule while searching, of which a
            core does some 50 million in a second; 0 takes the best plan of the batch rules as it
            is. A count and not a time, so that the same samples give the same plan on every
            machine; of passes and not of changes, so that large plans take no longer. It is spent
            in rounds of doubling length, 6,250 in the first; what is left over is not used.
        refinement: Passes to simulate while single ones are moved in short schedules of what a
            round found, where these may be adaptive; at most two for each pass until its end.
        seed: Of the random changes.
    """

    effort: int = Field(default=100_000, ge=0, le=LARGEST)
    refinement: int = Field(default=200_000, ge=0, le=LARGEST)
    seed: int = Field(default=0, ge=0, le=LARGEST)
