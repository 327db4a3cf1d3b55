"""A T5 in a pipeline trains as it does unsplit, in float64 to rounding."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.examples.pipeline_training import MODES, assert_equal, gradients, three_steps
from tests.examples.training_case import (
    GATED_T5_SHAPE,
    T5_SHAPE,
    each_layout,
    padded,
    random_samples,
    random_split,
    unsplit_gradients,
    unsplit_training,
)
from tests.examples.training_clusters import clusters, each_of, spread

from dynapipe_hpc.data.microbatch import DenseRows, Layout, MicroBatch
from dynapipe_hpc.models.collate import EncoderDecoderBatch
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.token_loader import TokenLoader

CLUSTERS = clusters(
    (1, 1, 1),
    (1, 2, 1),
    (2, 1, 1),
    (2, 2, 1),
    (3, 1, 1),
    (3, 2, 1),
    (4, 1, 1),
    (4, 2, 1),
    (6, 1, 1),
    (1, 1, 2),
    (3, 1, 2),
)
every_cluster = each_of(CLUSTERS + spread(CLUSTERS))


@every_cluster
def test_loss_and_every_gradient_are_those_of_the_unsplit_model(cluster: Cluster) -> None:
    samples = random_samples(1)
    microbatches = random_split(samples, 6, 1, MODES["mixed"], T5_SHAPE)
    found = gradients(cluster, "cyclic", samples, microbatches, shape=T5_SHAPE)
    assert_equal(found, unsplit_gradients(samples, padded(samples, T5_SHAPE), shape=T5_SHAPE))


@every_cluster
def test_three_steps_of_the_optimizer_give_the_unsplit_weights(cluster: Cluster) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(cluster, "adaptive", batches, MODES["mixed"], shape=T5_SHAPE)
    assert_equal(found, unsplit_training(batches, T5_SHAPE))


PACKING = clusters((1, 1, 1), (2, 2, 1), (3, 1, 1), (4, 1, 1), (2, 1, 2))


@each_layout
@each_of(PACKING + spread(PACKING))
def test_packed_rows_give_the_weights_of_padded_ones(
    cluster: Cluster, layouts: Sequence[Layout]
) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    found = three_steps(
        cluster, "adaptive", batches, MODES["mixed"], shape=T5_SHAPE, layouts=layouts
    )
    assert_equal(found, unsplit_training(batches, T5_SHAPE))


GATED = clusters((2, 2, 1), (5, 1, 1), (2, 1, 2))


@each_of(GATED + spread(GATED))
def test_other_kinds_of_t5_train_as_they_do_unsplit(cluster: Cluster) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    layouts = (Layout.PACKED, Layout.PADDED)
    found = three_steps(
        cluster, "zb_h1", batches, MODES["mixed"], shape=GATED_T5_SHAPE, layouts=layouts
    )
    assert_equal(found, unsplit_training(batches, GATED_T5_SHAPE))


@pytest.mark.parametrize("n_stages", [1, 3])
def test_sharing_out_the_optimizers_state_does_not_change_a_bit(n_stages: int) -> None:
    batches = [random_samples(seed) for seed in (4, 5, 6)]
    plain = Cluster(n_stages=n_stages, n_replicas=3, device_memory_bytes=1_000_000)
    shared = plain.model_copy(update={"zero_stage": 1})
    outcomes = [three_steps(c, "1f1b", batches, shape=T5_SHAPE) for c in (plain, shared)]
    assert outcomes[0].losses == outcomes[1].losses
    for name, weights in outcomes[0].tensors.items():
        assert torch.equal(outcomes[1].tensors[name], weights), name


def test_densely_packed_rows_equal_the_same_rows_unsplit() -> None:
    samples = random_samples(8)
    ids = [s.sample_id for s in samples]
    rows = tuple(tuple(ids[i : i + 2]) for i in range(0, len(ids), 2))
    whole = DenseRows(rows, 48, target_tokens=48)
    microbatches = [DenseRows(rows[i::4], 48, target_tokens=48) for i in range(4)]
    found = gradients(CLUSTERS[5], "1f1b", samples, microbatches, shape=T5_SHAPE)
    assert_equal(found, unsplit_gradients(samples, whole, shape=T5_SHAPE))


SAMPLES = {sample.sample_id: sample for sample in random_samples(9)}


def random_padding(
    loader: TokenLoader[EncoderDecoderBatch],
) -> Callable[[MicroBatch], EncoderDecoderBatch]:
    """Loads with random tokens and labels where no sample is."""

    def load(microbatch: MicroBatch) -> EncoderDecoderBatch:
        read = loader(microbatch)
        for row, (sample_id,) in enumerate(microbatch.rows):
            sample = SAMPLES[sample_id]
            read.inputs[row, max(1, sample.input_tokens) :].random_(0, 31)
            read.tokens.tokens[row, sample.target_tokens :].random_(0, 31)
            read.tokens.labels[row, sample.target_tokens :].random_(0, 31)
        return read

    return load


@pytest.mark.parametrize("mode", MODES)
def test_what_padding_holds_does_not_change_a_bit(mode: str) -> None:
    samples = list(SAMPLES.values())
    microbatches = random_split(samples, 5, 9, MODES[mode], T5_SHAPE)
    plain = gradients(CLUSTERS[4], "1f1b", samples, microbatches, shape=T5_SHAPE)
    noisy = gradients(
        CLUSTERS[4], "1f1b", samples, microbatches, loading=random_padding, shape=T5_SHAPE
    )
    assert noisy.losses == plain.losses
    for name, gradient in plain.tensors.items():
        assert torch.equal(noisy.tensors[name], gradient), name
