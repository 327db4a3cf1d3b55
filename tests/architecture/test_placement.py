"""Layers on pipeline stages, and what follows from where they are."""

import pytest
from tests.examples.training_case import SHAPE, T5_SHAPE

from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.architecture.placement import Placement


@pytest.mark.parametrize(
    ("n_layers", "n_stages", "expected"),
    [
        (6, 1, (6,)),
        (6, 3, (2, 2, 2)),
        (7, 3, (2, 3, 2)),  # the ends hold the embedding and the head
        (8, 3, (3, 3, 2)),
        (11, 4, (3, 3, 3, 2)),
        (3, 2, (2, 1)),
    ],
)
def test_stages_in_the_middle_take_the_remainder_first(
    n_layers: int, n_stages: int, expected: tuple[int, ...]
) -> None:
    placement = Placement.equal_shares(n_layers, n_stages)
    assert placement.layers_per_stage == expected
    assert (placement.n_layers, placement.n_stages) == (n_layers, n_stages)


def test_the_ends_of_a_gpt_hold_its_embedding_and_its_head() -> None:
    assert Placement((3, 1)).parts(SHAPE) == [
        {"layer": 3, "embedding": 1, "head": 0},
        {"layer": 1, "embedding": 0, "head": 1},
    ]


def test_a_t5_hands_on_pairs_from_its_first_decoder_layer_on() -> None:
    rows, pair = Boundary.ROWS, Boundary.PAIR
    t5 = T5_SHAPE  # three layers on each side
    assert Placement((2, 1, 2, 1)).boundaries(t5) == [rows, rows, pair, pair]
    assert Placement((2, 2, 2)).boundaries(t5) == [rows, pair, pair]
    assert Placement((2, 2)).boundaries(SHAPE) == [rows, rows]
