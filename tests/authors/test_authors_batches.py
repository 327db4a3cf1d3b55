"""The micro-batches of the authors' planner."""

from dataclasses import replace

import numpy as np
import pytest
from reproduce.authors.authors_batches import AuthorsBatches, NoCutError
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import DoesNotFitError

COST = linear_cost(recomputes=True)  # keeps 2 bytes per token, and half a byte if recomputed
STORED_BYTES = 2 * 64


def modes_of(cluster: Cluster, rule: AuthorsBatches, lengths: list[int]) -> set[Recompute]:
    return {m.recompute for m in rule(samples_of(lengths), COST, cluster)}


@pytest.mark.parametrize(
    ("memory_bytes", "mode"),
    [
        (4 * STORED_BYTES, Recompute.NONE),  # a sample may keep half of the memory, and does
        (2 * STORED_BYTES - 1, Recompute.FULL),  # more than half without recomputation
    ],
)
def test_one_long_sample_decides_on_the_mode_of_all(memory_bytes: int, mode: Recompute) -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    assert modes_of(cluster, AuthorsBatches(0), [64, 8, 8, 8]) == {mode}


def test_all_memory_may_be_kept_if_half_of_it_suffices_in_no_mode() -> None:
    # An eighth of 255 bytes is less than the 32 that the longest sample keeps if recomputed.
    cost = linear_cost(launch_ms=(1.0,) * 8, token_ms=(0.01,) * 8, recomputes=True)
    cluster = Cluster(n_stages=8, device_memory_bytes=2 * STORED_BYTES - 1)
    found = AuthorsBatches(0)(samples_of([64, 8]), cost, cluster)
    assert {m.recompute for m in found} == {Recompute.NONE}


def test_a_grid_too_coarse_for_the_samples_is_an_error_with_a_way_out() -> None:
    cluster = Cluster(n_stages=2, device_memory_bytes=10**6)
    message = r"the samples fit, but .* limits on time, 5 ms apart; lower .*interval_ms"
    with pytest.raises(NoCutError, match=message):
        AuthorsBatches(5)(samples_of([64, 8]), COST, cluster)
    assert AuthorsBatches(0.005)(samples_of([64, 8]), COST, cluster)


def test_every_stage_has_the_memory_of_the_one_with_the_largest_model() -> None:
    samples, even = samples_of([64, 64]), linear_cost(recomputes=True)
    uneven = replace(even, static_bytes=np.array([0.0, 200.0]))
    ample, less = (
        Cluster(n_stages=2, device_memory_bytes=memory_bytes) for memory_bytes in (1000, 800)
    )
    assert AuthorsBatches(0)(samples, uneven, ample) == AuthorsBatches(0)(samples, even, less)
    with pytest.raises(DoesNotFitError, match="of which 200 for the model"):
        AuthorsBatches(0)(samples, uneven, Cluster(n_stages=2, device_memory_bytes=290))


def test_the_rule_says_its_setting() -> None:
    assert str(AuthorsBatches(0.005)) == "authors, limits 0.005 ms apart"
