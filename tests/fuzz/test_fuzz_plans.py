"""A few of the cases that `make fuzz` runs in any number."""

import pytest
from tests.fuzz.fuzz_plans import fuzz
from tests.fuzz.random_plans import CHANGES


def test_the_check_refuses_exactly_the_plans_that_do_not_work() -> None:
    counts = fuzz(n_cases=100, seed=1)
    assert counts["none", "works and passes"] == 100


@pytest.mark.slow
def test_every_kind_of_change_is_met_with_every_outcome() -> None:
    counts = fuzz(n_cases=2_000, seed=2)
    assert all(counts[name, "is broken and refused"] > 40 for name in CHANGES)
    harmless = {name for name in CHANGES if counts[name, "works and passes"] > 4}
    assert harmless >= {"move", "swap", "swap neighbours", "slot"}
