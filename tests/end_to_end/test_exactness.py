"""Training in a pipeline gives what training without one gives, in float64 to rounding."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.examples.exact_split import split_samples
from tests.examples.linear_cost import linear_cost
from tests.examples.pipeline_training import MODES, assert_equal, gradients, three_steps
from tests.examples.training_case import (
    SHAPE,
    TIED_SHAPE,
    each_layout,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.data.microbatch import DenseRows, Layout, MicroBatch, PackedRow
from dynapipe_hpc.models.decoder import DecoderBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.schedule.config import RuleName
from dynapipe_hpc.training.config import LossWeighting
from dynapipe_hpc.training.token_loader import TokenLoader

CLUSTERS = clusters(
    (1, 1, 1),
    (1, 2, 1),
    (2, 1, 1),
    (2, 2, 1),
    (4, 1, 1),
    (4, 2, 1),
    (1, 1, 2),
    (1, 1, 4),
    (2, 2, 2),
)
every_cluster = each_of(CLUSTERS + spread(CLUSTERS))
every_schedule = pytest.mark.parametrize("schedule", ["1f1b", "cyclic"])


@every_cluster
@every_schedule
def test_loss_and_every_gradient_are_those_of_the_unsplit_model(
    cluster: Cluster, schedule: RuleName
) -> None:
    samples = random_samples(1)
    found = gradients(cluster, schedule, samples, random_split(samples, 6, seed=1))
    assert_equal(found, unsplit_gradients(samples, padded(samples)))


@every_cluster
def test_three_steps_of_the_optimizer_give_the_unsplit_weights(cluster: Cluster) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(cluster, "adaptive", batches, MODES["mixed"])
    assert_equal(found, unsplit_training(batches))


TIED_CLUSTERS = clusters((2, 2, 1), (4, 1, 1), (1, 1, 2))


@each_of(TIED_CLUSTERS + spread(TIED_CLUSTERS))
def test_a_head_with_the_embeddings_weights_trains_them_as_the_unsplit_model_does(
    cluster: Cluster,
) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(cluster, "adaptive", batches, MODES["mixed"], shape=TIED_SHAPE)
    assert_equal(found, unsplit_training(batches, TIED_SHAPE))


PACKING = clusters((2, 2, 1), (4, 1, 1), (2, 1, 2))


@each_layout
@each_of(PACKING + spread(PACKING))
def test_packed_rows_give_the_weights_of_padded_ones(
    cluster: Cluster, layouts: Sequence[Layout]
) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(cluster, "adaptive", batches, MODES["mixed"], layouts=layouts)
    assert_equal(found, unsplit_training(batches))


def test_rows_filled_up_by_several_documents_give_the_same_gradients() -> None:
    samples, cluster = random_samples(1), Cluster(n_stages=2, device_memory_bytes=1_000_000)
    batches = split_samples(
        samples, linear_cost(), cluster, layouts=[Layout.PACKED], token_multiple=512
    )
    for m in batches:
        assert isinstance(m, PackedRow)
        assert m.row_tokens - m.offsets[-1] > 128
    shape = SHAPE.model_copy(update={"max_tokens": 128})
    found = gradients(cluster, "1f1b", samples, batches, shape=shape)
    assert_equal(found, unsplit_gradients(samples, padded(samples), shape=shape))


@pytest.mark.parametrize(("n_stages", "n_shards"), [(1, 1), (2, 1), (1, 2), (1, 4)])
def test_sharing_out_the_optimizers_state_does_not_change_a_bit(
    n_stages: int, n_shards: int
) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    plain = Cluster(
        n_stages=n_stages, n_replicas=3, n_shards=n_shards, device_memory_bytes=1_000_000
    )
    shared_out = plain.model_copy(update={"zero_stage": 1})
    outcomes = [three_steps(cluster, "adaptive", batches) for cluster in (plain, shared_out)]
    assert outcomes[0].losses == outcomes[1].losses
    assert outcomes[0].norms == outcomes[1].norms
    for name, weights in outcomes[0].tensors.items():
        assert torch.equal(outcomes[1].tensors[name], weights), name


@pytest.mark.parametrize("weighting", ["sample", "task"])
def test_other_weights_of_the_loss_are_exact_too(weighting: LossWeighting) -> None:
    samples = random_samples(7)
    found = gradients(CLUSTERS[3], "1f1b", samples, random_split(samples, 6, 7), weighting)
    assert_equal(found, unsplit_gradients(samples, padded(samples), weighting))


@every_schedule
def test_densely_packed_rows_equal_the_same_rows_unsplit(schedule: RuleName) -> None:
    samples = random_samples(8)
    rows: list[tuple[int, ...]] = [(s.sample_id,) for s in samples if s.tokens > 12]
    short = [s.sample_id for s in samples if s.tokens <= 12]
    rows += [tuple(short[i : i + 2]) for i in range(0, len(short), 2)]
    microbatches = [DenseRows(tuple(rows[i::4]), 24) for i in range(4)]
    found = gradients(CLUSTERS[3], schedule, samples, microbatches)
    assert_equal(found, unsplit_gradients(samples, DenseRows(tuple(rows), 24)))


def random_padding(loader: TokenLoader[DecoderBatch]) -> Callable[[MicroBatch], DecoderBatch]:
    """Loads with random tokens and labels where no sample is."""

    def load(microbatch: MicroBatch) -> DecoderBatch:
        read = loader(microbatch)
        for row, (sample_id,) in enumerate(microbatch.rows):
            end = SAMPLES[sample_id].tokens
            if read.tokens:
                read.tokens.tokens[row, end:].random_(0, 31)
                read.tokens.labels[row, end:].random_(0, 31)
        return read

    return load


SAMPLES = {sample.sample_id: sample for sample in random_samples(9)}


@pytest.mark.parametrize("mode", MODES)
def test_what_padding_holds_does_not_change_a_bit(mode: str) -> None:
    samples = list(SAMPLES.values())
    microbatches = random_split(samples, 5, 9, MODES[mode])
    plain = gradients(CLUSTERS[3], "1f1b", samples, microbatches)
    noisy = gradients(CLUSTERS[3], "1f1b", samples, microbatches, loading=random_padding)
    assert noisy.losses == plain.losses
    for name, gradient in plain.tensors.items():
        assert torch.equal(noisy.tensors[name], gradient), name
