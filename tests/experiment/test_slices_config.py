"""Configurations whose plans may have slices, and those that refuse a number of tokens."""

from collections.abc import Callable

import pytest
from pydantic import ValidationError
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig

PACKED: dict[str, object] = {"rule": "dynamic", "layouts": ["packed"]}


def configured(
    made: Callable[[], ExperimentConfig],
    batch: dict[str, object],
    rules: list[str],
    effort: int = 1000,
) -> ExperimentConfig:
    tables = made().model_dump(exclude_none=True)
    tables["planner"] |= {
        "batch": batch,
        "schedule": {"rules": rules},
        "search": {"effort": effort},
    }
    return ExperimentConfig.model_validate(tables)


@pytest.mark.parametrize(
    ("made", "batch", "rules", "may_slice"),
    [
        (tiny_experiment, PACKED, ["adaptive"], True),
        (tiny_experiment, PACKED | {"layouts": ["padded", "packed"]}, ["1f1b", "adaptive"], True),
        (tiny_experiment, PACKED | {"slices": 16}, ["adaptive"], True),
        (tiny_experiment, PACKED | {"slices": "off"}, ["adaptive"], False),
        (tiny_experiment, PACKED | {"layouts": ["padded"]}, ["adaptive"], False),
        (tiny_experiment, {"rule": "packed_balanced"}, ["adaptive"], False),
        (tiny_experiment, PACKED, ["1f1b"], False),
        (tiny_t5_experiment, PACKED, ["adaptive"], False),
    ],
)
def test_samples_may_be_cut_where_their_slices_can_run(
    made: Callable[[], ExperimentConfig],
    batch: dict[str, object],
    rules: list[str],
    may_slice: bool,
) -> None:
    config = configured(made, batch, rules)
    assert config.may_slice is may_slice
    if may_slice:
        assert not config.without_slices().may_slice


@pytest.mark.parametrize(
    ("made", "layout", "rule", "message"),
    [
        (tiny_experiment, "padded", "adaptive", "slices of samples are micro-batches of packed"),
        (tiny_experiment, "packed", "1f1b", "add 'adaptive' to schedule.rules, or set slices to"),
        (tiny_t5_experiment, "packed", "adaptive", "family 't5' cannot be cut into slices"),
    ],
)
def test_a_number_of_tokens_is_refused_elsewhere(
    made: Callable[[], ExperimentConfig], layout: str, rule: str, message: str
) -> None:
    with pytest.raises(ValidationError, match=f"slices is 16, but .*{message}"):
        configured(made, PACKED | {"layouts": [layout], "slices": 16}, [rule])
