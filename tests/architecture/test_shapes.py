import pytest
from tests.examples.training_case import SHAPE

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.rope_scaling import plain_rotations

SIZES = {"n_layers": 2, "hidden_size": 8, "n_heads": 2, "head_size": 4}
SIZES |= {"ffn_size": 16, "vocab_size": 30, "max_tokens": 24}


@pytest.mark.parametrize(("family", "epsilon"), [("gpt", 1e-5), ("llama", 1e-5), ("t5", 1e-6)])
def test_an_epsilon_that_is_left_out_is_the_familys_own(family: str, epsilon: float) -> None:
    shape = shape_from_values({**SIZES, "family": family})
    assert shape.norm_epsilon == epsilon


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


LONG = {"type": "longrope", "short_factor": [1], "long_factor": [3]}
OLD = {"rope_scaling": LONG, "original_max_position_embeddings": 8, "max_position_embeddings": 99}


def test_dynamic_angles_are_plain() -> None:
    values = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert plain_rotations(values)["rope_scaling"]["rope_type"] == "default"
    assert values["rope_scaling"]["type"] == "dynamic"  # not changed
    assert plain_rotations(OLD) == OLD
