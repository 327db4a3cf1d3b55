"""The memory account on a plan that can be done by hand."""

from dataclasses import replace

import pytest
from tests.examples.example_plans import plans_of_grid

from dynapipe_hpc.plan.rank_plan import MemoryPlan, peak_bytes, stored_peak_bytes


@pytest.mark.parametrize(
    ("passes", "peak"),
    [
        ("", 1000),
        ("F0 B0 F1 B1", 1000 + 20 + 5),
        ("F0 F1 B1 B0", 1000 + 10 + 20 + 5),
        ("F1 F0 B0 B1", 1000 + 20 + 10 + 7),
        ("F0 F1 B0 B1", 1000 + 10 + 20 + 7),
    ],
)
def test_stored_bytes_stay_until_backward_and_transient_bytes_come_on_top(
    passes: str, peak: int
) -> None:
    plan = plans_of_grid(f"rank 0 | {passes}", n_microbatches=2)[0]
    memory = MemoryPlan(
        limit=0, static=1000, stored=(10, 20), forward_transient=(1, 2), backward_transient=(7, 5)
    )
    assert peak_bytes(replace(plan, memory=memory)) == peak


def test_the_stored_peak_leaves_out_what_cannot_be_counted_while_a_plan_runs() -> None:
    plan = plans_of_grid("rank 0 | F0 B0 F1 B1", n_microbatches=2)[0]
    memory = MemoryPlan(
        limit=0, static=1000, stored=(10, 20), forward_transient=(1, 2), backward_transient=(7, 5)
    )
    assert stored_peak_bytes(replace(plan, memory=memory)) == 20
