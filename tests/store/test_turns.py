from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.store.plan_store import PlannerTurns

TURNS = st.builds(
    PlannerTurns,
    n_ranks=st.integers(1, 40),
    look_ahead=st.integers(1, 40),
    first=st.integers(0, 50),
)


def test_every_rank_plans_if_the_look_ahead_covers_all() -> None:
    turns = PlannerTurns(n_ranks=4, look_ahead=6)
    assert [turns.planner_of(k) for k in range(6)] == [0, 1, 2, 3, 0, 1]
    assert (turns.n_entries, turns.capacity) == (2, 8)


def test_few_planners_are_spread_over_the_ranks() -> None:
    turns = PlannerTurns(n_ranks=1000, look_ahead=4)
    assert turns.planners == [0, 250, 500, 750]
    assert (turns.n_entries, turns.capacity) == (1, 4)


@given(TURNS)
def test_capacity_is_the_look_ahead_rounded_up_to_whole_turns(turns: PlannerTurns) -> None:
    assert turns.look_ahead <= turns.capacity < turns.look_ahead + turns.n_planners
    assert turns.capacity % turns.n_planners == 0


@given(TURNS)
def test_planners_are_different_ranks_of_the_job(turns: PlannerTurns) -> None:
    assert len(set(turns.planners)) == turns.n_planners
    assert set(turns.planners) <= set(range(turns.n_ranks))


@given(TURNS, st.integers(0, 1000))
def test_a_planners_numbers_count_its_iterations(turns: PlannerTurns, number: int) -> None:
    iteration = turns.first + number
    own = [
        k
        for k in range(turns.first, iteration)
        if turns.planner_of(k) == turns.planner_of(iteration)
    ]
    assert turns.number_of(iteration) == len(own)
    assert turns.iteration_at(len(own), like=iteration) == iteration
