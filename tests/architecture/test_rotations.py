"""Settings of rotary positions, as files of `transformers` 4 and 5 have them."""

from typing import Any

import pytest

from dynapipe_hpc.architecture.rope_scaling import plain_rotations, short_tokens

LONG = {"type": "longrope", "short_factor": [1], "long_factor": [3]}
OLD = {"rope_scaling": LONG, "original_max_position_embeddings": 8, "max_position_embeddings": 99}
NEW = {
    "rope_parameters": {
        "full_attention": {**LONG, "rope_type": "longrope", "original_max_position_embeddings": 8},
        "sliding_attention": {"rope_type": "default"},
    }
}


@pytest.mark.parametrize(
    ("values", "n"),
    [
        (OLD, 8),
        (NEW, 8),
        ({"rope_scaling": LONG, "max_position_embeddings": 99}, 99),
        ({"rope_scaling": {**LONG, "type": "su"}, "original_max_position_embeddings": 8}, 8),
        ({"rope_scaling": None, "original_max_position_embeddings": 8}, None),
        ({"rope_parameters": {"rope_type": "default"}}, None),
        ({}, None),
    ],
)
def test_short_factors_are_for_rows_of_the_first_training(
    values: dict[str, Any], n: int | None
) -> None:
    assert short_tokens(values) == n


def test_dynamic_angles_are_plain() -> None:
    values = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert plain_rotations(values)["rope_scaling"]["rope_type"] == "default"
    assert values["rope_scaling"]["type"] == "dynamic"  # not changed
    assert plain_rotations(OLD) == OLD
