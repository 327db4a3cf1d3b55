"""The [data] table."""

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from dynapipe_hpc.data.config import DataConfig


def test_a_sample_longer_than_a_batch_is_refused() -> None:
    with pytest.raises(
        ValidationError,
        match=r"max_tokens \(2048\) exceeds tokens_per_batch \(1024\).*lower max_tokens or raise",
    ):
        DataConfig(dataset="x.h5", max_tokens=2048, tokens_per_batch=1024)


def mixture(*mixed: Mapping[str, object], **settings: object) -> DataConfig:
    tables = {"mixture": mixed, "max_tokens": 8, "tokens_per_batch": 8, **settings}
    return DataConfig.model_validate(tables)


ONE, TWO = {"dataset": "a/one.h5"}, {"dataset": "b/two.h5"}


def test_datasets_of_a_mixture_are_named_like_their_files() -> None:
    config = mixture(ONE, {**TWO, "name": "chat"})
    assert [mixed.name for mixed in config.mixture or ()] == ["one", "chat"]
    assert config.paths == ("a/one.h5", "b/two.h5")
    alone = mixture(ONE, TWO, mixture_cap=3).alone("x.h5")
    assert alone == DataConfig(dataset="x.h5", max_tokens=8, tokens_per_batch=8)


@pytest.mark.parametrize(
    ("mixed", "settings", "told"),
    [
        ([], {"mixture": None}, r"dataset is missing, or \[\[data.mixture\]\] tables"),
        ([ONE, TWO], {"dataset": "x.h5"}, r"both dataset \('x.h5'\) and \[\[data.mixture\]\]"),
        ([], {"mixture": None, "dataset": "x.h5", "mixture_cap": 9}, "mixture_cap is for"),
        ([ONE, {**TWO, "weight": 2}], {}, "'two' has weight = 2.0, but 'one' has none"),
        (
            [{**ONE, "weight": 1}, {**TWO, "weight": 2}],
            {"mixture_temperature": 2},
            "mixture_temperature makes rates follow .* but 'one' has weight = 1.0",
        ),
        ([ONE, {"dataset": "b/one.h5"}], {}, "two datasets have the name 'one'; set name for one"),
        ([ONE], {}, "only one .* table; write dataset = 'a/one.h5'"),
        ([ONE, {**TWO, "weight": 0}], {}, "greater than 0"),
        ([ONE, {**TWO, "name": ""}], {}, "at least 1 character"),
        ([], {"dataset": "x.h5"}, "at least 1 item"),
    ],
)
def test_a_mixture_that_says_too_little_or_too_much_is_refused(
    mixed: list[Mapping[str, object]], settings: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        mixture(*mixed, **settings)
