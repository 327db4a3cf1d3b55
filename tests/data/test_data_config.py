"""The [data] table."""

import pytest
from pydantic import ValidationError

from dynapipe_hpc.data.config import DataConfig


def test_a_sample_longer_than_a_batch_is_refused() -> None:
    with pytest.raises(
        ValidationError,
        match=r"max_tokens \(2048\) exceeds tokens_per_batch \(1024\).*lower max_tokens or raise",
    ):
        DataConfig(dataset="x.h5", max_tokens=2048, tokens_per_batch=1024)


def test_a_sample_may_fill_a_batch() -> None:
    assert DataConfig(dataset="x.h5", max_tokens=1024, tokens_per_batch=1024).seed == 0


@pytest.mark.parametrize("key", ["max_tokens", "tokens_per_batch"])
def test_an_empty_batch_is_refused(key: str) -> None:
    tokens = {"max_tokens": 1, "tokens_per_batch": 1} | {key: 0}
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        DataConfig(dataset="x.h5", **tokens)
