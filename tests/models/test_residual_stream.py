"""A residual stream that is spread over shards, against the whole one."""

from typing import Any, NamedTuple

import pytest
import torch
from tests.jobs.local_shards import of_stream, on_shards
from torch import Tensor
from torch.nn import functional

from dynapipe_hpc.models.sharding.sharded_linear import Adapters, ResidualStream, residual_stream
from dynapipe_hpc.models.sharding.shards import ONE_SHARD, Shards

WIDTH, OUTPUTS = 4, 6
SIZES = [(1, 1), (2, 3), (3, 5), (4, 4)]  # fewer tokens than shards, and numbers of any remainder
every_size = pytest.mark.parametrize(("rows", "tokens"), SIZES)
every_number = pytest.mark.parametrize("n_shards", [2, 3, 4])


def random(*size: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)  # threads share the default one
    return torch.randn(size, dtype=torch.float64, generator=stream)


class LinearMap(NamedTuple):
    weight: Tensor
    bias: Tensor | None
    adapters: Adapters = Adapters()

    def __call__(self, values: Tensor, /) -> Tensor:
        return functional.linear(values, self.weight, self.bias)


def spread(shards: Shards, rows: int, tokens: int) -> ResidualStream:
    return residual_stream(shards, rows, tokens)


def of_shard(whole: Tensor, shard: int, n_shards: int) -> list[list[float]]:
    """Tokens of a shard: numbered through all rows, equally many each, then zeros."""
    flat = whole.detach().flatten(0, 1).tolist()
    n_own = -(-len(flat) // n_shards)
    flat += [[0.0] * whole.shape[-1]] * (n_shards * n_own - len(flat))
    return flat[shard * n_own : (shard + 1) * n_own]


def test_a_stream_is_spread_only_if_shards_have_agreed_on_it() -> None:
    assert of_stream(residual_stream(ONE_SHARD, 1, 2), torch.ones(1, 2, 3)).shape == (1, 2, 3)
    whole = on_shards(2, lambda s: of_stream(residual_stream(s, 1, 2), torch.ones(1, 2, 3)).shape)
    assert whole == [(1, 2, 3)] * 2
    parts = on_shards(
        2,
        lambda s: of_stream(residual_stream(s, 1, 2), torch.ones(1, 2, 3)).shape,
        sequence_parallel=True,
    )
    assert parts == [(1, 3)] * 2


@every_size
@every_number
def test_all_tokens_are_gathered_and_each_shard_takes_the_gradient_of_its_own(
    rows: int, tokens: int, n_shards: int
) -> None:
    values, towards = (random(rows, tokens, WIDTH, seed=seed) for seed in (1, 2))

    def work(shards: Shards) -> tuple[Tensor, Tensor, Tensor | None]:
        stream = spread(shards, rows, tokens)
        hidden = of_stream(stream, values).clone().requires_grad_()
        ended = stream.end(hidden * 3)
        ended.backward(towards)  # type: ignore[no-untyped-call]
        return hidden.detach(), ended.detach(), hidden.grad

    found = on_shards(n_shards, work, sequence_parallel=True)
    for shard, (hidden, ended, gradient) in enumerate(found):
        assert hidden.tolist() == of_shard(values, shard, n_shards)
        assert torch.equal(ended, 3 * values)
        assert gradient is not None
        assert gradient.tolist() == of_shard(3 * towards, shard, n_shards)


@every_size
@every_number
def test_own_tokens_are_no_copies(rows: int, tokens: int, n_shards: int) -> None:
    def work(shards: Shards) -> tuple[bool, bool]:
        values = random(rows, tokens, WIDTH, seed=1)
        hidden = of_stream(spread(shards, rows, tokens), values)
        is_view = hidden.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        n_own = len(hidden)
        return is_view, (shards.shard + 1) * n_own <= rows * tokens

    for is_view, is_full in on_shards(n_shards, work, sequence_parallel=True):
        assert is_view == is_full


@every_size
@every_number
def test_what_is_gathered_adds_up_its_gradients(rows: int, tokens: int, n_shards: int) -> None:
    values = random(rows, tokens, WIDTH, seed=1)
    towards = [random(rows, tokens, WIDTH, seed=2 + shard) for shard in range(n_shards)]

    def work(shards: Shards) -> tuple[Tensor, Tensor]:
        stream = spread(shards, rows, tokens)
        hidden = of_stream(stream, values).clone().requires_grad_()
        gathered = stream.gather(hidden)
        gathered.backward(towards[shards.shard])  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        return gathered.detach(), hidden.grad

    total = torch.stack(towards).sum(0)
    for shard, (gathered, gradient) in enumerate(on_shards(n_shards, work, sequence_parallel=True)):
        assert torch.equal(gathered, values)
        expected = torch.tensor(of_shard(total, shard, n_shards), dtype=torch.float64)
        torch.testing.assert_close(gradient, expected, rtol=1e-14, atol=1e-14)


@every_size
@every_number
def test_maps_see_all_tokens_and_keep_own_ones(rows: int, tokens: int, n_shards: int) -> None:
    values = random(rows, tokens, WIDTH, seed=1)
    towards = [random(rows, tokens, 2 * OUTPUTS, seed=2 + shard) for shard in range(n_shards)]

    def weights_of(shard: int) -> list[Tensor]:
        sizes = ((OUTPUTS, WIDTH), (OUTPUTS,), (OUTPUTS, WIDTH))
        drawn = [random(*size, seed=10 * shard + i) for i, size in enumerate(sizes)]
        return [each.requires_grad_() for each in drawn]

    def work(shards: Shards) -> tuple[Tensor, Tensor, list[Tensor | None], set[torch.Size]]:
        stream, own = spread(shards, rows, tokens), weights_of(shards.shard)
        hidden = of_stream(stream, values).clone().requires_grad_()
        saved: set[torch.Size] = set()

        def note(tensor: Tensor) -> Tensor:
            saved.add(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            maps: list[Any] = [LinearMap(own[0], own[1]), LinearMap(own[2], None)]
            mapped = stream.map(hidden, *maps)
        joined = torch.cat(mapped, -1)
        joined.backward(towards[shards.shard])  # type: ignore[no-untyped-call]
        assert hidden.grad is not None
        return joined.detach(), hidden.grad, [each.grad for each in own], saved

    def plain(shard: int) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        own, whole = weights_of(shard), values.clone().requires_grad_()
        joined = torch.cat(
            [functional.linear(whole, own[0], own[1]), functional.linear(whole, own[2])], -1
        )
        joined.backward(towards[shard])  # type: ignore[no-untyped-call]
        assert whole.grad is not None
        return joined.detach(), whole.grad, [each.grad for each in own]

    expected = [plain(shard) for shard in range(n_shards)]
    total = torch.stack([gradient for _, gradient, _ in expected]).sum(0)
    found = on_shards(n_shards, work, sequence_parallel=True)
    for shard, (joined, gradient, of_weights, saved) in enumerate(found):
        torch.testing.assert_close(joined, expected[shard][0], rtol=1e-13, atol=1e-13)
        own = torch.tensor(of_shard(total, shard, n_shards), dtype=torch.float64)
        torch.testing.assert_close(gradient, own, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(of_weights, expected[shard][2], rtol=1e-13, atol=1e-13)
        n_own = -(-rows * tokens // n_shards)
        assert saved == {(n_own, WIDTH), (OUTPUTS, WIDTH)}


@every_size
@every_number
def test_positions_count_from_the_start_of_each_row(rows: int, tokens: int, n_shards: int) -> None:
    table = random(tokens + 2, WIDTH, seed=1)

    def work(shards: Shards) -> Tensor:
        stream = spread(shards, rows, tokens)
        zeros = of_stream(stream, torch.zeros(rows, tokens, WIDTH, dtype=torch.float64))
        return stream.end(zeros + stream.rows_of(table))

    for found in on_shards(n_shards, work, sequence_parallel=True):
        assert torch.equal(found, table[:tokens].expand(rows, -1, -1))


@every_number
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tokens_of_a_packed_row_have_given_positions(
    n_shards: int, sequence_parallel: bool
) -> None:
    table, positions = random(4, WIDTH, seed=1), torch.tensor([0, 1, 2, 0, 0, 1, 3])

    def work(shards: Shards) -> Tensor:
        stream = residual_stream(shards, 1, 7)
        zeros = of_stream(stream, torch.zeros(1, 7, WIDTH, dtype=torch.float64))
        return stream.end(zeros + stream.rows_of(table, positions))

    for found in on_shards(n_shards, work, sequence_parallel=sequence_parallel):
        assert torch.equal(found[0], table[positions])
