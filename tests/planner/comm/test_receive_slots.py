"""Numbers for receive buffers."""

from dynapipe_hpc.planner.comm.receive_slots import ReceiveSlots


def test_the_lowest_free_slot_is_taken() -> None:
    slots = ReceiveSlots()
    assert [slots.take(i) for i in (0, 1, 0, 2)] == [0, 1, 2, 3]
    slots.release(0)
    slots.release(1)
    assert [slots.take(i) for i in (3, 4, 5, 6)] == [0, 1, 2, 4]


def test_a_micro_batch_without_slots_releases_nothing() -> None:
    slots = ReceiveSlots()
    slots.release(0)
    assert slots.take(1) == 0
