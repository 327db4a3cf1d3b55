"""Flash attention of packed documents, against its formula, through CPU kernels of like calls."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dynapipe_hpc.models import packed_attention as flash
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.packed_attention import flash_obstacle, packed_attention

CPU = torch.device("cpu")
ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ON_CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
NONE = torch.empty(0)


def rows(tensor: Tensor, start: int, end: int, n_heads: int) -> Tensor:
    """A document as the CPU kernel wants it, with as many heads as queries have."""
    own = tensor[start:end].repeat_interleave(n_heads // tensor.shape[1], 1)
    return own.transpose(0, 1)[None]


def mask(q: Tensor, n_queries: int, n_keys: int, is_causal: bool, left: int | None) -> Tensor:
    """Numbers added to scores; the last query sees the last key."""
    ahead = torch.arange(n_keys) - torch.arange(n_queries)[:, None] - (n_keys - n_queries)
    hidden = (ahead > 0) & is_causal
    if left is not None and left >= 0:
        hidden |= ahead < -left
    return q.new_zeros(n_queries, n_keys).masked_fill(hidden, -torch.inf)


def parts(q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor) -> Iterator[Any]:
    """Bounds and rows of each document."""
    heads = q.shape[1]
    for of_q, of_k in zip(pairwise(q_ends.tolist()), pairwise(k_ends.tolist()), strict=True):
        yield of_q, of_k, [rows(q, *of_q, heads), rows(k, *of_k, heads), rows(v, *of_k, heads)]


def forward_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor,
    max_q: int, max_k: int, dropout: float, is_causal: bool, debug: bool, *,
    window_size_left: int | None = None, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert (dropout, debug, q_ends.dtype, k_ends.dtype) == (0, False, torch.int32, torch.int32)
    assert max_q >= max(2, int(q_ends.diff().max()))
    assert max_k >= int(k_ends.diff().max())
    wide = torch.promote_types(q.dtype, torch.float32)
    attended, scores = torch.empty_like(q), q.new_empty(q.shape[:2], dtype=wide)
    for (start, end), (first, last), of_rows in parts(q, k, v, q_ends, k_ends):
        added = mask(q, end - start, last - first, is_causal, window_size_left)
        out, logsumexp = ON_CPU(*of_rows, attn_mask=added)
        attended[start:end] = out[0].transpose(0, 1)
        scores[start:end] = logsumexp[0].reshape(q.shape[1], -1).T
    return attended, scores, torch.tensor([3]), torch.tensor([4]), NONE


def backward_on_cpu(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, attended: Tensor, scores: Tensor,
    q_ends: Tensor, k_ends: Tensor, max_q: int, max_k: int, dropout: float, is_causal: bool,
    state: Tensor, unused: Tensor, *, window_size_left: int | None = None, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert (dropout, int(state), int(unused)) == (0, 3, 4)
    assert max_q >= int(q_ends.diff().max())
    assert max_k >= int(k_ends.diff().max())
    gradients = [torch.zeros_like(each) for each in (q, k, v)]
    for of_q, of_k, of_rows in parts(q, k, v, q_ends, k_ends):
        added = mask(q, of_q[1] - of_q[0], of_k[1] - of_k[0], is_causal, window_size_left)
        towards, out = (each[slice(*of_q)].transpose(0, 1)[None] for each in (gradient, attended))
        logsumexp = scores[slice(*of_q)].T[None].contiguous()
        found = ON_CPU_BACKWARD(towards, *of_rows, out, logsumexp, 0.0, False, attn_mask=added)
        for total, part, bounds in zip(gradients, found, (of_q, of_k, of_k), strict=True):
            heads_last = part[0].transpose(0, 1).unflatten(1, (total.shape[1], -1))
            total[slice(*bounds)] += heads_last.sum(2)
    return tuple(gradients)


@pytest.fixture(scope="module", autouse=True)
def kernels_on_cpu() -> Iterator[None]:
    """Gives torch's operators kernels on the CPU, as its own are for GPUs only."""
    patch = pytest.MonkeyPatch()
    patch.setattr(flash, "_has_operators", lambda _: True)
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("_flash_attention_forward", forward_on_cpu, "CPU")
    library.impl("_flash_attention_backward", backward_on_cpu, "CPU")
    yield
    patch.undo()
    library._destroy()


def random(n_tokens: int, n_heads: int, seed: int) -> Tensor:
    stream = torch.manual_seed(seed)
    drawn = torch.randn(n_tokens, n_heads, 8, dtype=torch.float64, generator=stream)
    return drawn.requires_grad_()


def expected(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[tuple[int, int]], window: int
) -> Tensor:
    """The formula, document by document and query by query."""
    n_shared = query.shape[1] // key.shape[1]
    attended, q_start, k_start = [], 0, 0
    for n_queries, n_keys in lengths:
        for i in range(n_queries):
            last = k_start + n_keys - n_queries + i
            seen = slice(max(k_start, last - window + 1), last + 1)
            for head in range(query.shape[1]):
                scores = key[seen, head // n_shared] @ query[q_start + i, head] / 8**0.5
                weights = torch.exp(scores) / torch.exp(scores).sum()
                attended.append(weights @ value[seen, head // n_shared])
        q_start, k_start = q_start + n_queries, k_start + n_keys
    return torch.stack(attended).view_as(query)


PACKED = [(5, 5), (1, 1), (12, 12)]
PREFIXED = [(5, 14), (7, 7), (1, 3)]


@pytest.mark.parametrize("lengths", [PACKED, PREFIXED, [(1, 1), (1, 6)]])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 1, 4])
def test_results_and_gradients_are_those_of_the_formula(
    lengths: list[tuple[int, int]], key_heads: int, window: int | None
) -> None:
    n_queries, n_keys = zip(*lengths, strict=True)
    query, key, value = (
        random(sum(n), heads, seed)
        for n, heads, seed in ((n_queries, 4, 1), (n_keys, key_heads, 2), (n_keys, key_heads, 3))
    )
    inputs = query, key, value
    queries, keys = Documents.from_lengths(n_queries), Documents.from_lengths(n_keys)
    found = packed_attention(query, key, value, queries=queries, keys=keys, window=window)
    wanted = expected(query, key, value, lengths, window or sum(n_keys))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    towards = random(sum(n_queries), 4, 4).detach()
    pairs = (torch.autograd.grad(each, inputs, towards) for each in (found, wanted))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("head_size", [8, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_kernel_passes_its_probe(dtype: torch.dtype, head_size: int) -> None:
    assert flash._probe_obstacle(CPU, dtype, head_size) == ""


@pytest.mark.parametrize("part", range(4))
def test_a_kernel_with_wrong_numbers_is_not_used(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = flash._probe

    def wrong(device: torch.device, dtype: torch.dtype, head_size: int) -> list[Tensor]:
        found = right(device, dtype, head_size)
        if dtype is torch.float64:
            found[part] = found[part] * 0.9
        return found

    monkeypatch.setattr(flash, "_probe", wrong)
    obstacle = flash._probe_obstacle(CPU, torch.float64, 8)
    assert "is wrong by" in obstacle
    assert obstacle.endswith("install a newer build")


def test_a_build_without_the_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("USE_FLASH_ATTENTION was not enabled for build.\nTrace")

    monkeypatch.setattr(flash, "packed_attention", missing)
    assert flash._probe_obstacle(CPU, torch.float64, 8) == (
        f"torch {torch.__version__} cannot run it here (USE_FLASH_ATTENTION was not enabled for "
        "build.): install a build with it"
    )


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "reason"),
    [
        ("cpu", torch.bfloat16, 64, "it needs a GPU, and the device is cpu"),
        ("cuda", torch.float32, 64, "it needs 16-bit activations, not float32: set training.dtype"),
        ("cuda", torch.bfloat16, 20, "multiple of 8 and at most 256, and the model's is 20"),
        ("cuda", torch.float16, 264, "multiple of 8 and at most 256, and the model's is 264"),
        ("cuda", torch.float16, 64, "it needs compute capability 8.0, and the GPU has 7.5"),
    ],
)
def test_what_it_cannot_run_is_named(
    device: str, dtype: torch.dtype, head_size: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert reason in flash_obstacle(torch.device(device, 99), dtype, head_size)


def test_torch_takes_the_arguments() -> None:
    forward, backward = (
        getattr(torch.ops.aten, f"_flash_attention_{way}").default._schema
        for way in ("forward", "backward")
    )
    names = [argument.name for argument in forward.arguments if not argument.kwarg_only]
    assert names[3:] == [
        *("cum_seq_q", "cum_seq_k", "max_q", "max_k"),
        *("dropout_p", "is_causal", "return_debug_mask"),
    ]
    # What forward leaves goes to backward unread, so it must be of the same kind and number.
    left = [str(value.type) for value in forward.returns[2:-1]]
    takes = [argument for argument in backward.arguments if not argument.kwarg_only]
    assert [argument.name for argument in takes[:12]] == [
        *("grad_out", "query", "key", "value", "out", "logsumexp"),
        *("cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"),
    ]
    assert [str(argument.type) for argument in takes[12:]] == left == ["Tensor", "Tensor"]
    for schema in (forward, backward):
        window = next(each for each in schema.arguments if each.name == "window_size_left")
        assert window.kwarg_only
