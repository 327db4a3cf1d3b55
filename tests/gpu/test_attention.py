"""Attention and gradients of weights on a GPU, against a processor and float64."""

from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise, product

import pytest
import torch
from tests.examples.training_case import (
    SHAPE,
    T5_SHAPE,
    Outcome,
    Rank,
    laid_out,
    make_rank,
    padded,
    unsplit_gradients,
)
from tests.gpu.no_waiting import no_waiting
from torch import Tensor, nn

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.deferred_weights import DeferredWeights, adds_in_product, deferring, linear
from dynapipe_hpc.models.documents import Documents, SlicedRow
from dynapipe_hpc.models.packed_attention import KeyValueCache
from dynapipe_hpc.models.transformers.attention import capped_attention
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.flat_parameters import FlatParameters

pytestmark = pytest.mark.gpu

N_LENGTHS, LONGEST = 40, 168
ROWS_EACH, WIDTH = 2, 128
ALONE = Cluster(device_memory_bytes=1_000_000)


def shape_with(family: ModelShape, head_size: int) -> ModelShape:
    sizes = {"n_layers": 2, "hidden_size": WIDTH, "ffn_size": 256, "max_tokens": LONGEST}
    heads = {"n_heads": WIDTH // head_size, "head_size": head_size}
    return shape_from_values(family.model_dump() | sizes | heads)


SHAPES = [shape_with(family, size) for family in (SHAPE, T5_SHAPE) for size in (64, 128)]
CASES = list(product(SHAPES, (Layout.PADDED, Layout.PACKED)))
every_case = pytest.mark.parametrize(
    ("shape", "layout"), CASES, ids=[f"{s.family}-{s.head_size}-{way.text}" for s, way in CASES]
)


def batches() -> list[list[Sample]]:
    """As many lengths of rows as batches; most rows of a batch are shorter, and are padded."""
    longest = torch.linspace(8, LONGEST - 2, N_LENGTHS).long().tolist()
    return [
        [
            _sample(100 * k + j, max(2, length * (ROWS_EACH - j) // ROWS_EACH))
            for j in range(ROWS_EACH)
        ]
        for k, length in enumerate(longest)
    ]


def _sample(sample_id: int, tokens: int) -> Sample:
    return Sample(sample_id, tokens - tokens // 2, tokens // 2, task_id=0)


def rank_on(device: torch.device, shape: ModelShape, dtype: torch.dtype) -> Rank:
    return make_rank(ALONE, 0, SingleRankCollectives(), shape=shape, dtype=dtype, device=device)


def pass_both_ways(
    rank: Rank, of: Sequence[Sequence[Sample]], shape: ModelShape, layout: Layout
) -> None:
    """Runs every batch as a micro-batch of one iteration."""
    for i, samples in enumerate(of):
        rank.stage.load(i, laid_out(samples, layout, shape))
        rank.stage.forward(i, None)
        rank.stage.backward(i, None)


@cache
def unsplit(shape: ModelShape) -> Outcome:
    """Result of one pass over all samples, in float64 on the processor."""
    samples = [sample for batch in batches() for sample in batch]
    return unsplit_gradients(samples, padded(samples, shape), shape=shape)


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradients[name].double().cpu().flatten() for name in sorted(gradients)])


@every_case
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 5e-2)], ids=str
)
def test_gradients_are_those_of_the_processor(
    device: torch.device, shape: ModelShape, layout: Layout, dtype: torch.dtype, tolerance: float
) -> None:
    of = batches()
    samples = [sample for batch in of for sample in batch]
    expected = unsplit(shape)
    rank = rank_on(device, shape, dtype)
    rank.tokens.start_iteration(samples)
    pass_both_ways(rank, of, shape, layout)
    found, wanted = flat(rank.gradients()), flat(expected.tensors)
    assert rank.stage.finish_iteration().loss == pytest.approx(expected.losses[0], rel=tolerance)
    assert (found - wanted).norm() < tolerance * wanted.norm()


@every_case
def test_no_length_makes_the_host_wait(
    device: torch.device, shape: ModelShape, layout: Layout
) -> None:
    of = batches()
    rank = rank_on(device, shape, torch.bfloat16)
    rank.tokens.start_iteration([sample for batch in of for sample in batch])
    pass_both_ways(rank, of[::2], shape, layout)  # warms up; every other length is new below
    torch.cuda.synchronize(device)
    with no_waiting():  # or else this raises
        pass_both_ways(rank, of, shape, layout)
    assert rank.stage.finish_iteration().loss > 0


LENGTHS = (70, 3, 128, 40)
HEADS, KEY_HEADS, SIZE = 4, 2, 64


def with_gradients(
    inputs: list[Tensor],
    lengths: tuple[int, ...] | None,
    *,
    window: int | None,
    cap: float | None,
    scale: float,
) -> list[Tensor]:
    """The result, and the gradients of the sum of its squares."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    documents = lengths and Documents.from_lengths(lengths).to(inputs[0].device)
    attend = partial(capped_attention, cap=cap) if cap else None
    query, key, value = leaves
    mixed = causal_attention(
        query, key, value, documents or None, scale=scale, window=window, attend=attend
    )
    return [mixed.detach(), *torch.autograd.grad(mixed, leaves, 2 * mixed.detach())]


@pytest.mark.parametrize("lengths", [LENGTHS, None], ids=["packed", "padded"])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("scale", [0.125, 0.3])
def test_attention_in_16_bits_is_that_of_float64(
    lengths: tuple[int, ...] | None,
    window: int | None,
    cap: float | None,
    scale: float,
    device: torch.device,
) -> None:
    stream = torch.Generator().manual_seed(3)
    rows = 1 if lengths else 2
    drawn = [
        torch.randn(rows, heads, sum(LENGTHS), SIZE, generator=stream, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    exact = with_gradients(drawn, lengths, window=window, cap=cap, scale=scale)
    inputs = [each.to(device, torch.bfloat16) for each in drawn]
    found = with_gradients(inputs, lengths, window=window, cap=cap, scale=scale)
    for own, expected in zip(found, exact, strict=True):
        error = (own.cpu().double() - expected).norm() / expected.norm()
        assert error < 0.03


@pytest.mark.parametrize("window", [2, 16, 50, 200])
@pytest.mark.parametrize("bounds", [(0, 130, 256), (0, 7, 20, 256)])
def test_slices_in_16_bits_see_what_whole_samples_do_in_float64(
    bounds: tuple[int, ...], window: int, device: torch.device
) -> None:
    stream = torch.Generator().manual_seed(3)
    *drawn, towards = (
        torch.randn(bounds[-1], heads, SIZE, generator=stream, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    )
    leaves = [each.clone().requires_grad_() for each in drawn]
    query, key, value = (each.transpose(0, 1)[None] for each in leaves)
    whole = causal_attention(query, key, value, window=window)[0].transpose(0, 1)
    exact = [whole.detach(), *torch.autograd.grad(whole, leaves, towards)]

    cache, passes = KeyValueCache(bounds[-1]), []
    for begin, end in pairwise(bounds):
        document = Documents.from_lengths([end - begin])
        row = SlicedRow.from_documents(document, begin)
        batch = Batch((1, end - begin), row, kv_cache=cache).to(device)
        own = [each[begin:end].to(device, torch.bfloat16).requires_grad_() for each in drawn]
        mixed = batch.attend(*(each[None] for each in own), window=window)[0]
        passes.append((own, mixed, towards[begin:end].to(device, torch.bfloat16)))
    gradients = [torch.autograd.grad(mixed, own, each) for own, mixed, each in reversed(passes)]
    found = [
        torch.cat([mixed.detach() for _, mixed, _ in passes]),
        *(torch.cat(each[::-1]) for each in zip(*gradients, strict=True)),
    ]
    for one, expected in zip(found, exact, strict=True):
        error = (one.cpu().double() - expected).norm() / expected.norm()
        assert error < 0.03


def test_grouped_heads_keep_no_scores_beside_a_window(device: torch.device) -> None:
    n_tokens = 4096
    query, key, value = (
        torch.randn(1, n, n_tokens, SIZE, device=device, dtype=torch.bfloat16).requires_grad_()
        for n in (32, 8, 8)
    )
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    causal_attention(query, key, value, window=1024)
    taken = torch.cuda.max_memory_allocated(device) - before
    assert taken < 32 * n_tokens**2 * 2  # scores of all heads in 16 bits


def passes(module: nn.Linear, values: Tensor, towards: Tensor) -> None:
    """A pass whose weight gradient comes at once, and one in which it comes later."""
    queue = DeferredWeights()
    torch.autograd.backward(linear(values, module.weight), towards)
    with deferring(queue):
        output = linear(values, module.weight)
    torch.autograd.backward(output, towards)
    queue.accumulate()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs", "tokens"), [(64, 192, 40), (5, 3, 7), (1024, 8, 1)])
def test_sums_are_those_of_float32_products(
    device: torch.device, dtype: torch.dtype, inputs: int, outputs: int, tokens: int
) -> None:
    torch.manual_seed(0)
    module = nn.Linear(inputs, outputs, bias=False, dtype=dtype, device=device)
    flat = FlatParameters(module)
    if not adds_in_product(module.weight):
        pytest.skip(f"torch {torch.__version__} cannot add products to float32 matrices")
    values = torch.randn(2, tokens, inputs, dtype=dtype, device=device, requires_grad=True)
    towards = torch.randn(2, tokens, outputs, dtype=dtype, device=device)
    passes(module, values, towards)
    flat.gradients.fill_(1)
    with no_waiting():
        passes(module, values, towards)
    product = torch.einsum("rto,rti->oi", towards.double(), values.detach().double())
    found = flat.gradients[: product.numel()].view_as(product).double()
    torch.testing.assert_close(found, 1 + 2 * product, rtol=1e-4, atol=1e-3)
