"""Flash attention of packed documents, against its formula, through CPU kernels of like calls."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.oracles.plain_attention import causal_bias, plain_attention
from torch import Tensor

from dynapipe_hpc.models import packed_attention as flash
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.packed_attention import flash_obstacle, packed_attention

CPU = torch.device("cpu")


def parts(
    q_ends: Tensor, k_ends: Tensor, max_q: int, max_k: int, *options: object
) -> Iterator[tuple[slice, slice]]:
    """Queries and keys of each document."""
    assert options == (0, True)  # no dropout, causal
    assert (q_ends.dtype, k_ends.dtype) == (torch.int32, torch.int32)
    assert max_q >= max(2, int(q_ends.diff().max()))
    assert max_k >= int(k_ends.diff().max())
    ends = (pairwise(each.tolist()) for each in (q_ends, k_ends))
    return ((slice(*of_q), slice(*of_k)) for of_q, of_k in zip(*ends, strict=True))


def forward_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, *sizes: Any, window_size_left: int = 10**6, **_: Any
) -> tuple[Tensor, ...]:
    *sizes, debug = sizes  # type: ignore[assignment]
    assert debug is False
    attended, scores = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float64)
    for own, seen_keys in parts(*sizes):
        of_rows = q[own], k[seen_keys], v[seen_keys]
        attended[own], sums = flash._attention_on_cpu(*of_rows, window_size_left + 1)
        scores[own] = sums[0].T
    return attended, scores, torch.tensor([3]), torch.tensor([4]), torch.empty(0)


def backward_on_cpu(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, attended: Tensor, scores: Tensor,
    *sizes: Any, window_size_left: int = 10**6, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    *sizes, state, unused = sizes  # type: ignore[assignment]
    assert (int(state), int(unused)) == (3, 4)
    gradients = [torch.zeros_like(each) for each in (q, k, v)]
    wide = torch.promote_types(q.dtype, torch.float32)
    for own, seen_keys in parts(*sizes):
        left = attended[own], scores[own].T[None].to(wide).contiguous()
        of_rows = q[own], k[seen_keys], v[seen_keys]
        found = flash._gradients_on_cpu(gradient[own], of_rows, left, window_size_left + 1)
        for total, part, place in zip(gradients, found, (own, seen_keys, seen_keys), strict=True):
            total[place] += part
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
    """The formula, document by document."""
    n_queries, n_keys = (list(side) for side in zip(*lengths, strict=True))
    sides = zip((query, key, value), (n_queries, n_keys, n_keys), strict=True)
    documents = zip(*(torch.split(side, n) for side, n in sides), strict=True)
    return torch.cat(
        [plain_attention(q, k, v, causal_bias(len(q), len(k), window)) for q, k, v in documents]
    )


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


def test_the_kernel_passes_its_probe() -> None:
    assert flash._probe_obstacle(CPU, torch.float64, 8) == ""


@pytest.mark.parametrize("head_size", [8, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_to_16_bits_passes_its_probe(
    dtype: torch.dtype, head_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    formula = flash._written_out
    monkeypatch.setattr(flash, "packed_attention", lambda q, k, v, **_: formula(q, k, v))
    assert flash._probe_obstacle(CPU, dtype, head_size) == ""


@pytest.mark.parametrize("part", range(4))
def test_a_kernel_with_wrong_numbers_is_not_used(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = flash._with_gradients

    def wrong(inputs: list[Tensor], attend: Any) -> list[Tensor]:
        found = right(inputs, attend)
        if attend is not flash._written_out:
            found[part] = found[part] * 0.9
        return found

    monkeypatch.setattr(flash, "_with_gradients", wrong)
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
        ("cpu", torch.bfloat16, 64, "it needs a GPU, but the device is cpu"),
        ("cuda", torch.float32, 64, "it needs 16-bit activations, not float32: set training.dtype"),
        ("cuda", torch.bfloat16, 20, "multiple of 8 and at most 256, but the model's is 20"),
        ("cuda", torch.float16, 264, "multiple of 8 and at most 256, but the model's is 264"),
        ("cuda", torch.float16, 64, "it needs compute capability 8.0, but the GPU has 7.5"),
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
