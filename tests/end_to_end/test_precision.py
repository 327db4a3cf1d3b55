"""Training in 16 bits, over stages and replicas."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.examples.pipeline_training import MODES, three_steps, train
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import (
    SHAPE,
    T5_SHAPE,
    Rank,
    over_replicas,
    random_samples,
    random_split,
    unsplit_training,
)

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.token_loader import TokenLoader

CLUSTER = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=1_000_000, zero_stage=1)
SHARDED = Cluster(n_replicas=2, n_shards=4, device_memory_bytes=1_000_000, zero_stage=1)
BATCHES = [random_samples(seed) for seed in (4, 5, 6)]


# Two to three times what was found on one kind of processor.
ERRORS = [
    (SHAPE, torch.float32, 1.5e-7, 2e-7),
    (SHAPE, torch.float16, 8e-5, 1e-3),
    (SHAPE, torch.bfloat16, 3e-4, 5e-3),
    (T5_SHAPE, torch.float32, 2e-7, 3e-7),
    (T5_SHAPE, torch.float16, 6e-4, 4e-2),
    (T5_SHAPE, torch.bfloat16, 3e-3, 8e-2),
]


# Shards add up in every type; the narrowest shows it.
CASES = [
    *((CLUSTER, *errors) for errors in ERRORS),
    *((SHARDED, *errors) for errors in ERRORS if errors[1] == torch.bfloat16),
]


@pytest.mark.parametrize(
    ("cluster", "shape", "dtype", "of_loss", "of_norm"),
    CASES,
    ids=[
        f"{'whole' if cluster is CLUSTER else 'sharded'}-{shape.family}-{dtype}"
        for cluster, shape, dtype, *_ in CASES
    ],
)
def test_a_narrower_type_trains_alike(
    cluster: Cluster, shape: ModelShape, dtype: torch.dtype, of_loss: float, of_norm: float
) -> None:
    found = three_steps(cluster, "adaptive", BATCHES, MODES["mixed"], dtype, shape)
    expected = unsplit_training(BATCHES, shape)
    assert found.losses == pytest.approx(expected.losses, rel=of_loss)
    assert found.norms == pytest.approx(expected.norms, rel=of_norm)
    assert all(tensor.dtype == dtype for tensor in found.tensors.values())


def overflowing(loader: TokenLoader) -> Callable[[MicroBatch], Batch]:
    """Weighs one prediction in the loss so much that its gradient overflows."""

    def load(microbatch: MicroBatch) -> Batch:
        read: Batch = loader(microbatch)
        if read.labels and 4000 in microbatch.sample_ids:
            read.labels.weights[microbatch.sample_ids.index(4000), 0] = 1e9
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
