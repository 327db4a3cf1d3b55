import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import RandomTokens
from tests.oracles.plain_gpt import losses

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import DenseRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import IterationTokens
from dynapipe_hpc.models.decoder import DecoderStage

SHAPE = GptShape(n_layers=4, hidden_size=16, n_heads=2, ffn_size=32, vocab_size=31, max_tokens=24)


TIED = SHAPE.model_copy(update={"tied_head": True, "norm_epsilon": 1e-2})


def stages(
    n_stages: int, dtype: torch.dtype = torch.float64, shape: ModelShape = SHAPE
) -> list[DecoderStage]:
    placement = Placement.equal_shares(shape.n_layers, n_stages)
    return [
        DecoderStage(
            shape,
            placement.layers[stage],
            first=stage == 0,
            last=stage == n_stages - 1,
            seed=3,
            dtype=dtype,
        )
        for stage in range(n_stages)
    ]


def random_tokens(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, 31, (rows, tokens), generator=torch.manual_seed(rows))


START = 30
SAMPLES = {s.sample_id: s for s in (Sample(1, 9, 4), Sample(2, 3, 7), Sample(3, 0, 20))}
TOKENS = IterationTokens(SAMPLES, {1: 0.5, 2: 0.25, 3: 0.125}, RandomTokens(), START)
ROWS = {"padded": ((1,), (2,), (3,)), "packed": ((1, 2), (3,))}


@pytest.mark.parametrize("shape", [SHAPE, TIED], ids=["own head", "tied head"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_the_loss_is_that_of_the_model_written_out(
    shape: ModelShape, rows: tuple[tuple[int, ...], ...]
) -> None:
    (whole,) = stages(1, shape=shape)
    for seed, weight in enumerate(whole.parameters()):  # zeros and ones would hide much
        torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
    weights = {name: p.detach().numpy() for name, p in whole.named_parameters()}
    microbatch = DenseRows(rows, 24)
    batch = whole.collate(microbatch, TOKENS)
    found = run_stage(whole, None, batch)
    expected = sum(weighted_loss(weights, row, shape.norm_epsilon) for row in rows)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def weighted_loss(
    weights: dict[str, npt.NDArray[np.float64]], row: tuple[int, ...], epsilon: float
) -> float:
    """Of the samples of a row, each read behind a start token."""
    tokens, labels, counts = [], [], []
    for sample in (SAMPLES[i] for i in row):
        inputs, targets = RandomTokens().read(
            sample.sample_id, sample.input_tokens, sample.target_tokens
        )
        own = [*inputs.tolist(), *targets.tolist()]
        tokens += [START, *own[:-1]]
        labels += own
        counts += [0.0] * len(inputs) + [TOKENS.weights[sample.sample_id]] * len(targets)
    of_labels = losses(weights, SHAPE.n_layers, SHAPE.n_heads, tokens, labels, epsilon)
    return sum(loss * count for loss, count in zip(of_labels, counts, strict=True))


@pytest.mark.parametrize("shape", [SHAPE, TIED], ids=["own head", "tied head"])
@pytest.mark.parametrize("n_stages", [2, 3, 4])
def test_every_split_starts_with_the_bits_of_the_whole_model(
    shape: ModelShape, n_stages: int
) -> None:
    (whole,) = stages(1, shape=shape)
    parts = [stage.state_dict() for stage in stages(n_stages, shape=shape)]
    assert {name for part in parts for name in part} == whole.state_dict().keys()
    for part in parts:
        for name, weight in part.items():
            assert torch.equal(weight, whole.state_dict()[name]), name


def test_the_last_stage_of_a_tied_model_holds_the_vectors_of_tokens_and_no_positions() -> None:
    first, last = (stage.state_dict().keys() for stage in stages(2, shape=TIED))
    assert [name for name in last if not name.startswith("layers.")] == [
        "embedding.tokens.weight",
        "head.norm.weight",
        "head.norm.bias",
    ]
    assert first & last == {"embedding.tokens.weight"}


def test_weights_start_alike_in_every_dtype() -> None:
    double, single = stages(1)[0].state_dict(), stages(1, torch.float32)[0].state_dict()
    assert all(torch.equal(double[name].float(), single[name]) for name in double)


def test_another_seed_gives_other_weights() -> None:
    one = DecoderStage(SHAPE, range(1), first=True, last=False, seed=1)
    two = DecoderStage(SHAPE, range(1), first=True, last=False, seed=2)
    assert one.embedding is not None
    assert two.embedding is not None
    assert not torch.equal(one.embedding.tokens.weight, two.embedding.tokens.weight)


def test_no_two_matrices_start_alike_and_the_residual_ones_are_smaller() -> None:
    (whole,) = stages(1)
    weights = {n: p for n, p in whole.named_parameters() if p.ndim == 2}
    assert len({float(p[0, 0].detach()) for p in weights.values()}) == len(weights)
    for name, weight in weights.items():
        deviation = 0.02 / 8**0.5 if name.endswith("output.weight") else 0.02
        assert weight.std().item() == pytest.approx(deviation, rel=0.2), name


def test_a_position_sees_only_itself_and_what_comes_before() -> None:
    body = DecoderStage(SHAPE, range(4), first=True, last=False, dtype=torch.float64)
    tokens = random_tokens(1, 12)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 31
    same = (body(tokens) == body(changed)).all(dim=-1)[0]
    assert same.tolist() == [True] * 7 + [False] * 5


def test_losses_are_cross_entropies() -> None:
    (whole,) = stages(1)
    tokens, labels = random_tokens(2, 5), random_tokens(2, 5)
    assert whole.head is not None
    assert whole.head.logits is not None
    assert whole.head.norm is not None
    body = DecoderStage(SHAPE, range(4), first=True, last=False, seed=3, dtype=torch.float64)
    logits = whole.head.logits(whole.head.norm(body(tokens)))
    chosen = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(whole(tokens, labels), -chosen, rtol=1e-12, atol=0)


def test_a_last_stage_without_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="the last stage computes losses and needs labels"):
        stages(1)[0](random_tokens(1, 3))


def test_a_stage_may_hold_an_end_of_the_model_alone() -> None:
    embedding = DecoderStage(SHAPE, range(0), first=True, last=False)
    head = DecoderStage(SHAPE, range(0), first=False, last=True)
    tokens = random_tokens(2, 3)
    assert embedding(tokens).shape == (2, 3, 16)
    assert head(embedding(tokens), tokens).shape == (2, 3)
