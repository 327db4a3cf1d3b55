import pytest

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.token_loader import token_weights

SAMPLES = [
    Sample(0, 5, 1, task_id=0), Sample(1, 0, 3, task_id=0), Sample(2, 9, 4, task_id=7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("token", {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}),
        ("sample", {0: 1 / 3, 1: 1 / 9, 2: 1 / 12}),
        ("task", {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}),
    ],
)
def test_a_token_weighs_as_what_counts_alike(
    weighting: LossWeighting, expected: dict[int, float]
) -> None:
    assert token_weights(SAMPLES, weighting) == expected


def test_a_sample_that_comes_twice_counts_twice() -> None:
    weights = token_weights([SAMPLES[0], SAMPLES[0], SAMPLES[1]], "token")
    assert weights == {0: 1 / 5, 1: 1 / 5}
