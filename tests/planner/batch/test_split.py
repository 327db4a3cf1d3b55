import pytest
from tests.examples.exact_split import split_samples
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import (
    DoesNotFitError,
    NotMeasuredError,
)
from dynapipe_hpc.planner.batch.order import order_samples

ROOMY = Cluster(n_stages=2, device_memory_bytes=10**9)


def test_only_a_sample_that_would_not_fit_otherwise_is_recomputed() -> None:
    samples = order_samples(samples_of([200, 16, 16]))
    cost = linear_cost((0.1,), (0.01,), token_bytes=2.0, recomputes=True)
    found = split_samples(samples, cost, Cluster(device_memory_bytes=300))
    assert [(m.n_rows, m.row_tokens, m.recompute) for m in found] == [
        (1, 200, Recompute.FULL),
        (2, 16, Recompute.NONE),
    ]


def test_a_sample_that_no_stage_can_hold_is_named_with_the_way_out() -> None:
    samples = order_samples(samples_of([10, 500]))
    cost = linear_cost(token_bytes=2.0, model_bytes=100.0)
    with pytest.raises(
        DoesNotFitError,
        match=r"sample 1 \(499 input \+ 1 target tokens\) on its own needs 1,612 bytes on "
        r"stage 0, of which 100 for the model, but cluster\.device_memory_bytes is 1,000; "
        r"raise it, add stages, allow .full. in planner\.cost\.recompute, "
        r"or cut long samples with data\.max_tokens",
    ):
        split_samples(samples, cost, Cluster(n_stages=2, device_memory_bytes=1000))


def test_a_sample_longer_than_what_was_measured_is_named_apart() -> None:
    samples = order_samples(samples_of([10, 70]))
    with pytest.raises(NotMeasuredError, match=r"sample 1 .* of what the cost model knows"):
        split_samples(samples, linear_cost(longest_row=64), ROOMY)
