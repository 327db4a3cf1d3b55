"""Training in 16 bits, over stages and replicas."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.oracles.pipeline_training import MODES, three_steps, train
from tests.oracles.planned_iteration import planned_iteration
from tests.oracles.training_case import (
    SHAPE,
    Rank,
    over_replicas,
    random_samples,
    random_split,
    unsplit_training,
)

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.models.collate import TokenBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.token_loader import TokenLoader

CLUSTER = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=1_000_000, zero_stage=1)
SHARDED = Cluster(n_replicas=2, n_shards=4, device_memory_bytes=1_000_000, zero_stage=1)
BATCHES = [random_samples(seed) for seed in (4, 5, 6)]


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("mode", ["none", "mixed"])
@pytest.mark.parametrize("cluster", [CLUSTER, SHARDED], ids=["whole", "sharded"])
def test_a_narrower_type_trains_alike(
    cluster: Cluster, dtype: torch.dtype, error: float, mode: str
) -> None:
    found = three_steps(cluster, "adaptive", BATCHES, MODES[mode], dtype)
    expected = unsplit_training(BATCHES)
    assert found.losses == pytest.approx(expected.losses, rel=error)
    assert found.norms == pytest.approx(expected.norms, rel=10 * error)
    assert all(tensor.dtype == dtype for tensor in found.tensors.values())


def overflowing(loader: TokenLoader[TokenBatch]) -> Callable[[MicroBatch], TokenBatch]:
    """Weighs one prediction in the loss so much that its gradient overflows."""

    def load(microbatch: MicroBatch) -> TokenBatch:
        read = loader(microbatch)
        if 4000 in microbatch.sample_ids:
            read.weights[microbatch.sample_ids.index(4000), 0] = 1e9
        return read

    return load


@pytest.mark.parametrize("cluster", [CLUSTER, SHARDED], ids=["whole", "sharded"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(cluster: Cluster) -> None:
    iterations = []
    for k, samples in enumerate(BATCHES[:2]):
        replicas = over_replicas(random_split(samples, 5, k), cluster.n_replicas)
        iterations.append((samples, planned_iteration(replicas, cluster, SHAPE, "1f1b")))
    dtype = torch.float16
    start = train(cluster, [], Rank.weights, dtype=dtype)
    skipped = train(cluster, iterations[:1], Rank.weights, loading=overflowing, dtype=dtype)
    assert not math.isfinite(skipped.norms[0])
    for name, weights in start.tensors.items():
        assert torch.equal(skipped.tensors[name], weights), name
    recovered = train(cluster, iterations, Rank.weights, loading=overflowing, dtype=dtype)
    assert math.isfinite(recovered.norms[1])
    assert any(not torch.equal(recovered.tensors[n], w) for n, w in start.tensors.items())
