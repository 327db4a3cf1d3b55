"""A T5 against the same model in plain operations: padded and packed, whole and in stages."""

from dataclasses import replace

import pytest
import torch
from tests.examples.any_decoders import run, stages_of
from tests.examples.training_case import START_ID, RandomTokens, packed_pairs, padded
from tests.oracles.plain_models import bucket, t5_losses

from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.t5 import T5Stage, buckets

SHAPE = T5Shape(
    n_layers=3, hidden_size=12, n_heads=2, head_size=5, ffn_size=20, vocab_size=31, max_tokens=200
)
SAMPLES = [Sample(1, 9, 4), Sample(2, 0, 1), Sample(3, 5, 18), Sample(4, 140, 3), Sample(5, 2, 3)]
WEIGHTS = {1: 0.5, 2: 2.0, 3: 0.125, 4: 0.25, 5: 1.0}
TOKENS = IterationTokens({s.sample_id: s for s in SAMPLES}, WEIGHTS, RandomTokens(), START_ID)
FILLS = [(0, 0), (7, 0), (0, 6), (3, 21), (131, 300)]
SHAPES = {
    "plain": SHAPE,
    "gated": SHAPE.model_copy(update={"gated": True}),
    "unscaled": SHAPE.model_copy(update={"scale_decoder_outputs": False}),
    "other head": SHAPE.model_copy(update={"tied_head": False}),
    "unequal": SHAPE.model_copy(update={"n_layers": 4, "n_decoder_layers": 2}),
    "other sizes": SHAPE.model_copy(
        update={"n_buckets": 10, "max_distance": 40, "norm_epsilon": 1e-2, "tied_head": True}
    ),
}


def stages(n_stages: int, shape: T5Shape = SHAPE) -> list[T5Stage]:
    return stages_of(T5Stage, shape, n_stages)


def loss_of(pipeline: list[T5Stage], microbatch: MicroBatch) -> float:
    return run(pipeline, microbatch, tokens=TOKENS).item()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("n_stages", [1, 2, 3, 6])
def test_the_loss_is_that_of_the_model_written_out(shape: T5Shape, n_stages: int) -> None:
    pipeline = stages(n_stages, shape)
    weights = {name: w for stage in pipeline for name, w in stage.state_dict().items()}
    expected = 0.0
    for sample in SAMPLES:
        inputs, targets = (side.tolist() for side in TOKENS.read(sample)[:2])
        losses = t5_losses(weights, shape.model_dump(), inputs, targets, START_ID)
        expected += WEIGHTS[sample.sample_id] * float(losses.sum())
    microbatches: list[MicroBatch] = [padded(SAMPLES, shape)]
    microbatches += [packed_pairs(SAMPLES, *fills) for fills in FILLS]
    for microbatch in microbatches:
        assert loss_of(pipeline, microbatch) == pytest.approx(expected, rel=1e-12)


def test_rows_of_several_samples_attend_over_all_of_them() -> None:
    dense = DenseRows(((1, 3),), 14, target_tokens=22)
    (whole,) = stages(1)
    batch = whole.collate(dense, TOKENS)
    assert batch.source is not None
    assert batch.source.lengths is None
    assert batch.tokens is not None
    assert batch.labels is not None
    assert batch.tokens[0, [0, 4]].tolist() == [START_ID, START_ID]
    assert batch.labels.weights[0].tolist() == [0.5] * 4 + [0.125] * 18
    apart = loss_of([whole], PaddedRows((1, 3), 12, target_tokens=18))
    assert loss_of([whole], dense) != pytest.approx(apart, rel=1e-3)


def test_weights_start_as_large_as_their_place_asks_for() -> None:
    shape = SHAPE.model_copy(update={"hidden_size": 64, "head_size": 16, "ffn_size": 256})
    whole = T5Stage(shape, range(6), first=True, last=True)
    deviations = {
        "embedding.weight": 1.0,
        "encoder_bias.weight": 1 / 8,
        "encoder.0.attention.query.weight": 1 / 32,
        "decoder.2.cross_attention.key_value.weight": 1 / 8,
        "decoder.1.feed_forward.output.weight": 1 / 16,
    }
    weights = dict(whole.named_parameters())
    for name, deviation in deviations.items():
        assert weights[name].std().item() == pytest.approx(deviation, rel=0.15), name
    assert (weights["decoder.0.cross_attention_norm.weight"] == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"offsets": (0, 9, 10, 16, 156, 158)},
            "sample 3 has 5 input tokens, but lies from 10 to 16 in a packed row",
        ),
        (
            {"target_offsets": (0, 3, 5, 23, 26, 29)},
            "sample 1 has 4 target tokens, but lies from 0 to 3 in a packed row",
        ),
    ],
)
def test_samples_of_other_lengths_than_the_plan_says_are_refused(
    change: dict[str, tuple[int, ...]], message: str
) -> None:
    microbatch = replace(packed_pairs(SAMPLES), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        stages(1)[0].collate(microbatch, TOKENS)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("sizes", [(32, 128), (10, 40), (4, 3)])
def test_near_distances_have_buckets_of_their_own_and_far_ones_share(
    side: str, sizes: tuple[int, int]
) -> None:
    found = buckets(torch.arange(-300, 301), *sizes, causal=side == "decoder")
    assert found.tolist() == [bucket(distance, side, *sizes) for distance in range(-300, 301)]
