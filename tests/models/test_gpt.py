import pytest
import torch

from dynapipe_hpc.models.gpt import GptStage
from dynapipe_hpc.plan.model_shape import ModelShape

SHAPE = ModelShape(n_layers=4, hidden_size=16, n_heads=2, ffn_size=32, vocab_size=31, max_tokens=24)


def stages(n_stages: int, dtype: torch.dtype = torch.float64) -> list[GptStage]:
    return [
        GptStage(
            SHAPE,
            SHAPE.layers_of_stage(stage, n_stages),
            first=stage == 0,
            last=stage == n_stages - 1,
            seed=3,
            dtype=dtype,
        )
        for stage in range(n_stages)
    ]


def random_tokens(rows: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, 31, (rows, tokens), generator=torch.manual_seed(rows))


@pytest.mark.parametrize("n_stages", [2, 3, 4])
def test_every_split_starts_with_the_bits_of_the_whole_model(n_stages: int) -> None:
    (whole,) = stages(1)
    parts: dict[str, torch.Tensor] = {}
    for stage in stages(n_stages):
        parts |= stage.state_dict()
    assert parts.keys() == whole.state_dict().keys()
    for name, weight in whole.state_dict().items():
        assert torch.equal(parts[name], weight), name


def test_weights_start_alike_in_every_dtype() -> None:
    double, single = stages(1)[0].state_dict(), stages(1, torch.float32)[0].state_dict()
    assert all(torch.equal(double[name].float(), single[name]) for name in double)


def test_another_seed_gives_other_weights() -> None:
    one = GptStage(SHAPE, range(1), first=True, last=False, seed=1)
    two = GptStage(SHAPE, range(1), first=True, last=False, seed=2)
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
    body = GptStage(SHAPE, range(4), first=True, last=False, dtype=torch.float64)
    tokens = random_tokens(1, 12)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 31
    same = (body(tokens) == body(changed)).all(dim=-1)[0]
    assert same.tolist() == [True] * 7 + [False] * 5


def test_the_loss_is_the_weighted_sum_of_cross_entropies() -> None:
    (whole,) = stages(1)
    tokens, labels = random_tokens(2, 5), random_tokens(2, 5)
    weights = torch.rand(2, 5, generator=torch.manual_seed(1), dtype=torch.float64)
    assert whole.head is not None
    body = GptStage(SHAPE, range(4), first=True, last=False, seed=3, dtype=torch.float64)
    logits = whole.head.logits(whole.head.norm(body(tokens)))
    chosen = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    expected = -(weights * chosen).sum().item()
    assert whole(tokens, labels, weights).item() == pytest.approx(expected, rel=1e-12)


def test_a_last_stage_without_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="the last stage computes the loss and needs labels"):
        stages(1)[0](random_tokens(1, 3))


def test_a_stage_may_hold_an_end_of_the_model_alone() -> None:
    embedding = GptStage(SHAPE, range(0), first=True, last=False)
    head = GptStage(SHAPE, range(0), first=False, last=True)
    tokens = random_tokens(2, 3)
    assert embedding(tokens).shape == (2, 3, 16)
    assert head(embedding(tokens), tokens, torch.ones(2, 3)).shape == ()
