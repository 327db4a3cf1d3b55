import numpy as np
import pytest
import torch
from tests.examples.linear_stage import Array
from tests.examples.local_ranks import LocalNetwork, LocalTransport, LocalWorld

from dynapipe_hpc.executor.transport.transport import TransportError
from dynapipe_hpc.plan.instruction import Payload

ACTIVATION, GRADIENT = Payload.ACTIVATION, Payload.GRADIENT
Pair = tuple[LocalTransport[Array], LocalTransport[Array]]


@pytest.fixture
def pair() -> Pair:
    network = LocalNetwork(LocalWorld(2), np.zeros)
    return network.transport(0), network.transport(1)


def test_two_sends_that_meet_are_a_disagreement_on_both_sides(pair: Pair) -> None:
    pair[0].start_send(1, ACTIVATION, 1, np.ones(2))
    with pytest.raises(
        TransportError,
        match=r"ranks 0 and 1 disagree on transfer 0 between them: rank 0 sends activation 1 "
        r"\(2,\), rank 1 sends gradient 0 \(2,\)",
    ):
        pair[1].start_send(0, GRADIENT, 0, np.ones(2))
    with pytest.raises(TransportError, match="disagree on transfer 0"):
        pair[0].wait_send(1, ACTIVATION)


def test_a_send_does_not_meet_the_same_send(pair: Pair) -> None:
    pair[0].start_send(0, ACTIVATION, 1, np.ones(2))
    with pytest.raises(TransportError, match=r"sends activation 0 .*, rank 1 sends activation 0"):
        pair[1].start_send(0, ACTIVATION, 0, np.ones(2))


def test_another_micro_batch_is_a_disagreement(pair: Pair) -> None:
    pair[0].start_send(0, ACTIVATION, 1, np.ones(2))
    with pytest.raises(TransportError, match=r"sends activation 0 .* receives activation 1 "):
        pair[1].start_receive(1, ACTIVATION, 0, (2,), slot=0)


def test_a_swapped_order_is_a_disagreement(pair: Pair) -> None:
    for i in (0, 1):
        pair[0].start_send(i, ACTIVATION, 1, np.ones(2))
    pair[1].start_receive(0, ACTIVATION, 0, (2,), slot=0)
    with pytest.raises(
        TransportError, match=r"transfer 1 .* sends activation 1 .* receives gradie"
    ):
        pair[1].start_receive(1, GRADIENT, 0, (2,), slot=1)


def test_shapes_that_differ_are_a_disagreement(pair: Pair) -> None:
    pair[0].start_send(0, ACTIVATION, 1, np.ones((2, 3)))
    with pytest.raises(TransportError, match=r"\(2, 3\), rank 1 receives activation 0 \(3, 2\)"):
        pair[1].start_receive(0, ACTIVATION, 0, (3, 2), slot=0)


def test_receiving_again_into_a_slot_destroys_what_it_held(pair: Pair) -> None:
    pair[0].start_send(0, ACTIVATION, 1, np.ones(2))
    pair[1].start_receive(0, ACTIVATION, 0, (2,), slot=0)
    held = pair[1].wait_receive(0, ACTIVATION)
    assert held.tolist() == [1, 1]
    pair[1].start_receive(1, ACTIVATION, 0, (2,), slot=0)
    assert np.isnan(held).all()


def test_waiting_for_what_was_not_started_is_an_error(pair: Pair) -> None:
    with pytest.raises(TransportError, match="rank 0 waits for send of gradient 3, which it did"):
        pair[0].wait_send(3, GRADIENT)


def test_starting_twice_without_waiting_is_an_error(pair: Pair) -> None:
    pair[0].start_send(0, ACTIVATION, 1, np.ones(2))
    with pytest.raises(TransportError, match="which it started before and did not wait for"):
        pair[0].start_send(0, ACTIVATION, 1, np.ones(2))


def test_tensors_of_torch_travel_too() -> None:
    network = LocalNetwork(LocalWorld(2), torch.empty)
    network.transport(0).start_send(0, ACTIVATION, 1, torch.tensor([1.0, 2.0]))
    receiver = network.transport(1)
    receiver.start_receive(0, ACTIVATION, 0, (2,), slot=0)
    assert receiver.wait_receive(0, ACTIVATION).tolist() == [1.0, 2.0]
