import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.oracles.plain_models import t5_losses

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import DenseRows, MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import Batch, IterationTokens
from dynapipe_hpc.models.t5 import T5Stage
from dynapipe_hpc.training.tied_copies import tied_weights

SHAPE = T5Shape(
    n_layers=3, hidden_size=12, n_heads=2, head_size=5, ffn_size=20, vocab_size=31, max_tokens=200
)
START = 30
SAMPLES = {s.sample_id: s for s in (Sample(1, 9, 4), Sample(2, 3, 7), Sample(3, 140, 1))}


class RandomTokens:
    """Every sample's tokens come from its number."""

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        stream = np.random.default_rng(sample_id)
        tokens = stream.integers(0, 30, 400)
        return tokens[:input_tokens], tokens[200 : 200 + target_tokens]

    def first_token(self, sample_id: int) -> int:
        return sample_id


TOKENS = IterationTokens(SAMPLES, {1: 0.5, 2: 0.25, 3: 0.125}, RandomTokens(), START)


def stages(n_stages: int, dtype: torch.dtype = torch.float64) -> list[T5Stage]:
    placement = Placement.equal_shares(SHAPE.n_all_layers, n_stages)
    return [
        T5Stage(
            SHAPE,
            placement.layers[stage],
            first=stage == 0,
            last=stage == n_stages - 1,
            seed=3,
            dtype=dtype,
        )
        for stage in range(n_stages)
    ]


def load(stage: T5Stage, microbatch: MicroBatch) -> Batch:
    return stage.collate(microbatch, TOKENS)


def loss_of(pipeline: list[T5Stage], microbatch: MicroBatch) -> torch.Tensor:
    activation = None
    for stage in pipeline:
        activation = run_stage(stage, activation, load(stage, microbatch))
    assert activation is not None
    return activation


PADDED = PaddedRows((1, 2, 3), 144, target_tokens=16)


GATED = SHAPE.model_copy(update={"gated": True})
UNSCALED = SHAPE.model_copy(update={"scale_decoder_outputs": False})
OTHER_HEAD = SHAPE.model_copy(update={"tied_head": False})
UNEQUAL = SHAPE.model_copy(update={"n_layers": 4, "n_decoder_layers": 2})
OTHER_SIZES = SHAPE.model_copy(
    update={"n_buckets": 10, "max_distance": 40, "norm_epsilon": 1e-2, "tied_head": True}
)


@pytest.mark.parametrize("shape", [SHAPE, GATED, UNSCALED, OTHER_HEAD, UNEQUAL, OTHER_SIZES])
def test_the_loss_is_that_of_the_model_written_out(shape: T5Shape) -> None:
    layers = range(shape.n_all_layers)
    whole = T5Stage(shape, layers, first=True, last=True, seed=3, dtype=torch.float64)
    for bias in (whole.encoder_bias, whole.decoder_bias):  # small ones would hardly be seen
        assert bias is not None
        torch.nn.init.normal_(bias.weight, generator=torch.manual_seed(1))
    expected = 0.0
    for sample in SAMPLES.values():
        inputs, targets = (side.tolist() for side in TOKENS.read(sample))
        losses = t5_losses(whole.state_dict(), shape.model_dump(), inputs, targets, START)
        expected += TOKENS.weights[sample.sample_id] * float(losses.sum())
    assert loss_of([whole], PADDED).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n_stages", [2, 3, 4, 6])
def test_every_split_starts_with_the_bits_of_the_whole_model(n_stages: int) -> None:
    (whole,) = stages(1)
    parts: dict[str, torch.Tensor] = {}
    held: dict[str, list[int]] = {}
    for number, stage in enumerate(stages(n_stages)):
        for name, weight in stage.state_dict().items():
            assert torch.equal(parts.setdefault(name, weight), weight), name
            held.setdefault(name, []).append(number)
    assert parts.keys() == whole.state_dict().keys()
    for name, weight in whole.state_dict().items():
        assert torch.equal(parts[name], weight), name
    copies = {name: tuple(at) for name, at in held.items() if len(at) > 1}
    placement = Placement.equal_shares(SHAPE.n_all_layers, n_stages)
    tied = tied_weights(SHAPE, placement, n_shards=1)
    assert {name: weight.stages for name, weight in tied.items()} == copies


@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_what_padding_holds_does_not_change_a_bit(mode: Recompute) -> None:
    outcomes = []
    for seed in (None, 1, 2):
        (whole,) = stages(1)
        batch = load(whole, PADDED)
        if seed is not None:
            fill_padding(batch, seed)
        loss = run_stage(whole, None, batch, mode)
        torch.autograd.backward(loss)
        outcomes.append([loss.detach(), *(p.grad for p in whole.parameters())])
    for other in outcomes[1:]:
        for plain, noisy in zip(outcomes[0], other, strict=True):
            assert plain is not None
            assert noisy is not None
            assert torch.equal(plain, noisy)


def fill_padding(batch: Batch, seed: int) -> None:
    stream = torch.manual_seed(seed)
    assert batch.source is not None
    assert batch.source.tokens is not None
    assert batch.tokens is not None
    assert batch.labels is not None
    for row, sample in enumerate(SAMPLES.values()):
        batch.source.tokens[row, sample.input_tokens :].random_(0, 31, generator=stream)
        batch.tokens[row, sample.target_tokens :].random_(0, 31, generator=stream)
        batch.labels.ids[row, sample.target_tokens :].random_(0, 31, generator=stream)


def test_a_target_without_input_attends_to_one_start_token() -> None:
    alone = {1: Sample(1, 0, 3)}
    (whole,) = stages(1)
    tokens = IterationTokens(alone, {1: 1.0}, RandomTokens(), START)
    batch = whole.collate(PaddedRows((1,), 8, target_tokens=8), tokens)
    assert batch.source is not None
    assert batch.source.lengths is not None
    assert batch.source.lengths.tolist() == [1]
    targets = RandomTokens().read(1, 0, 3)[1].tolist()
    losses = t5_losses(whole.state_dict(), SHAPE.model_dump(), [], targets, START)
    expected = float(losses.sum())
    assert run_stage(whole, None, batch).item() == pytest.approx(expected, rel=1e-12)


def test_rows_of_several_samples_attend_over_all_of_them() -> None:
    packed = DenseRows(((1, 2),), 12, target_tokens=11)
    (whole,) = stages(1)
    batch = load(whole, packed)
    assert batch.source is not None
    assert batch.source.lengths is None
    assert batch.tokens is not None
    assert batch.labels is not None
    assert batch.tokens[0, [0, 4]].tolist() == [START, START]
    assert batch.labels.weights[0].tolist() == [0.5] * 4 + [0.25] * 7
    apart = loss_of(stages(1), PaddedRows((1, 2), 12, target_tokens=8))
    assert loss_of(stages(1), packed).item() != pytest.approx(apart.item(), rel=1e-3)


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
