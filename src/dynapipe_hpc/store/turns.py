"""Which rank plans which iteration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turns:
    """The planning ranks take turns: planner p plans iterations p, p + n_planners, ...

    There are as many planners as ranks, but no more than iterations are planned ahead, and
    they are spread evenly over the ranks (so, over the nodes).

    Attributes:
        n_ranks: Ranks of the job.
        look_ahead: Iterations that should be planned ahead.
        first: The iteration that is planned first.
    """

    n_ranks: int
    look_ahead: int
    first: int = 0

    def __post_init__(self) -> None:
        """Checks that there is a turn to take."""
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
        """The ranks that plan, by turn."""
        return [self.planner_of(turn) for turn in range(self.n_planners)]

    @property
    def n_slots(self) -> int:
        """Plans of one rank that a planner keeps."""
        return -(-self.look_ahead // self.n_planners)

    @property
    def capacity(self) -> int:
        """Plans of one rank that all planners keep; `look_ahead`, rounded up to whole slots."""
        return self.n_planners * self.n_slots

    def planner_of(self, iteration: int) -> int:
        """The rank that plans an iteration."""
        return iteration % self.n_planners * self.n_ranks // self.n_planners

    def position_of(self, iteration: int) -> int:
        """How many iterations the same planner plans before this one."""
        return (iteration - self.first) // self.n_planners

    def iteration_at(self, position: int, like: int) -> int:
        """The iteration at a position of the planner that also plans the iteration `like`."""
        earliest = self.first + (like - self.first) % self.n_planners
        return earliest + position * self.n_planners
