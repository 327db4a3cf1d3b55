"""Assignment of iterations to planning ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannerTurns:
    """Turns of the planning ranks: planner p plans iterations p, p + n_planners, ...

    There are as many planners as ranks, but at most `look_ahead`, spread evenly over the ranks
    and so over the nodes.

    Attributes:
        n_ranks: Number of ranks of the job.
        look_ahead: Number of iterations to plan ahead.
        first: Number of the iteration that is planned first.
    """

    n_ranks: int
    look_ahead: int
    first: int = 0

    def __post_init__(self) -> None:
        """Checks that both numbers are positive."""
        if self.n_ranks < 1 or self.look_ahead < 1:
            raise ValueError(
                f"n_ranks ({self.n_ranks}) and look_ahead ({self.look_ahead}) must be >= 1"
            )

    @property
    def n_planners(self) -> int:
        """Number of ranks that plan."""
        return min(self.n_ranks, self.look_ahead)

    @property
    def planners(self) -> list[int]:
        """The ranks that plan, in the order of their turns."""
        return [self.planner_of(turn) for turn in range(self.n_planners)]

    @property
    def n_entries(self) -> int:
        """Number of plans of one rank that a planner keeps."""
        return -(-self.look_ahead // self.n_planners)

    @property
    def capacity(self) -> int:
        """Number of plans of one rank that all planners keep: `look_ahead`, rounded up."""
        return self.n_planners * self.n_entries

    def planner_of(self, iteration: int) -> int:
        """The rank that plans an iteration."""
        return iteration % self.n_planners * self.n_ranks // self.n_planners

    def number_of(self, iteration: int) -> int:
        """Number of iterations that the same planner plans before this one."""
        return (iteration - self.first) // self.n_planners

    def iteration_at(self, number: int, like: int) -> int:
        """The iteration with this number among those of the planner that plans iteration `like`."""
        earliest = self.first + (like - self.first) % self.n_planners
        return earliest + number * self.n_planners
