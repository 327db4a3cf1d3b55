"""Checksums of samples."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.tokenized import SAMPLES, Tokenized

from dynapipe_hpc.data.dataset.content_hash import ContentHash
from dynapipe_hpc.data.token_block import TokenBlock


def hash_of(*blocks: Sequence[Tokenized]) -> str:
    content = ContentHash()
    for block in blocks:
        content.add(TokenBlock.from_samples(block, 10))
    return content.hexdigest()


@given(first=st.integers(0, 3), second=st.integers(0, 3))
def test_blocks_make_no_difference(first: int, second: int) -> None:
    first, second = sorted((first, second))
    parts = SAMPLES[:first], SAMPLES[first:second], SAMPLES[second:]
    assert hash_of(*parts) == hash_of(SAMPLES)


@pytest.mark.parametrize(
    "others",
    [
        [],
        SAMPLES[:2],
        SAMPLES[::-1],
        [([1, 2, 3], [4, 8], "sum"), *SAMPLES[1:]],
        [([1, 2], [3, 4, 9], "sum"), *SAMPLES[1:]],
        [([1, 2, 3], [4, 9], "copy"), *SAMPLES[1:]],
        [([1, 2, 3], [4, 9], "s"), ([], [9], "umcopy"), SAMPLES[2]],
        [([1, 2, 3], [4], "sum"), ([], [9, 9], "copy"), SAMPLES[2]],
    ],
)
def test_other_samples_have_another_hash(others: list[Tokenized]) -> None:
    assert hash_of(others) != hash_of(SAMPLES)
