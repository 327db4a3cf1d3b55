"""Keys of the [model] table belong to families."""

import pytest

from dynapipe_hpc.architecture.families import shape_from_values

SIZES = {
    "n_layers": 2,
    "hidden_size": 8,
    "n_heads": 2,
    "head_size": 4,
    "ffn_size": 16,
    "vocab_size": 30,
    "max_tokens": 24,
}


@pytest.mark.parametrize(("family", "epsilon"), [("gpt", 1e-5), ("llama", 1e-5), ("t5", 1e-6)])
def test_an_epsilon_that_is_left_out_is_the_familys_own(family: str, epsilon: float) -> None:
    shape = shape_from_values({**SIZES, "family": family})
    assert shape.norm_epsilon == epsilon


def test_a_head_of_its_own_is_not_scaled() -> None:
    own_head = {**SIZES, "family": "t5", "tied_head": False}
    assert not shape_from_values(own_head).tied_head
    with pytest.raises(
        ValueError, match=r"scale_decoder_outputs is true, but tied_head false.*out"
    ):
        shape_from_values({**own_head, "scale_decoder_outputs": True})


def test_distances_that_no_bucket_could_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_distance \(16\) must be more than half of n_buck"):
        shape_from_values({**SIZES, "family": "t5", "max_distance": 16})
    shape_from_values({**SIZES, "family": "t5", "max_distance": 17})
