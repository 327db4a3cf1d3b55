from tests.examples.example_runs import example_plans

from dynapipe_hpc.experiment.watch.position import HEAD_BYTES, Phase, Position, Standing
from dynapipe_hpc.plan.codec import encode_plans


def shared(n_bytes: int) -> tuple[Position, Position]:
    """One place in memory, seen from two sides."""
    memory = memoryview(bytearray(HEAD_BYTES + n_bytes))
    return Position(memory), Position(memory)


def test_others_see_where_a_rank_is() -> None:
    own, seen = shared(0)
    assert seen.look() == Standing(Phase.STARTS, 0, 0, 0)
    own.enter(Phase.WAITS_FOR_PLAN, 7)
    assert seen.look() == Standing(Phase.WAITS_FOR_PLAN, 7, 0, 0)
    own.reach(12)
    assert seen.look() == Standing(Phase.WAITS_FOR_PLAN, 7, 12, 12)
    own.launch(15)
    own.complete(13)
    assert seen.look() == Standing(Phase.WAITS_FOR_PLAN, 7, 15, 13)
    own.enter(Phase.REPORTS, 7)
    assert seen.look() == Standing(Phase.REPORTS, 7, 0, 0)


def test_others_read_the_plan_in_execution() -> None:
    own, seen = shared(10_000)
    for plan, data in zip(example_plans(3), encode_plans(example_plans(3)), strict=True):
        own.start_plan(3, data)
        assert seen.look() == Standing(Phase.EXECUTES, 3, 0, 0)
        assert seen.read_plan() == plan


def test_no_plan_is_read_where_none_is_or_it_has_no_room_or_is_being_replaced() -> None:
    memory = memoryview(bytearray(HEAD_BYTES + 10_000))
    own = Position(memory)
    assert own.read_plan() is None
    (plan, _) = encode_plans(example_plans())
    own.start_plan(0, plan)
    memory[HEAD_BYTES + 40] ^= 1
    assert own.read_plan() is None
    small, seen = shared(len(plan) - 1)
    small.start_plan(0, plan)
    assert seen.read_plan() is None
