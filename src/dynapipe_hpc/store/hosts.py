"""The ranks of a job by host."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Hosts:
    """Hosts of a job, each named by its leader, the first of its ranks.

    Attributes:
        leader_of: Leader of the host of every rank, by rank.
    """

    leader_of: tuple[int, ...]

    @cached_property
    def ranks_of(self) -> dict[int, list[int]]:
        """The ranks of every host, in order, by leader."""
        ranks_by_host: dict[int, list[int]] = {}
        for rank, leader in enumerate(self.leader_of):
            ranks_by_host.setdefault(leader, []).append(rank)
        return ranks_by_host

    @cached_property
    def place_of(self) -> dict[int, int]:
        """The place of every rank among the ranks of its host, by rank."""
        return {rank: place for ranks in self.ranks_of.values() for place, rank in enumerate(ranks)}
