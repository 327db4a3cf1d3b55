"""Cost of a new shape for attention: with cuDNN, without it, and for rows of any length."""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.packed_attention import flash_obstacle, packed_attention
from gpu.device import Times, find_device, library_bytes, once_ms, typical_ms
from gpu.finding import note, rehearses

HEADS, HEAD_SIZE = (2, 16) if rehearses() else (32, 128)
N_SHAPES, MAX_TOKENS = (3, 128) if rehearses() else (40, 16384)
LIMIT_S = 20.0  # per way
NEW_SHAPE_MS = 100  # what a plan of cuDNN takes at least
FLASH_MS = 2

Shape = tuple[int, int]


def main() -> None:
    device = find_device()
    torch.backends.cuda.enable_cudnn_sdp(False)
    call(device, (1, 8))  # loads libraries
    report(device, "flash", shapes(1), f"< {FLASH_MS}", lambda ms: ms < FLASH_MS)
    torch.backends.cuda.enable_cudnn_sdp(True)
    report(device, "default", shapes(2), "100 to 1000 (cuDNN)", lambda ms: ms > NEW_SHAPE_MS)
    torch.backends.cuda.enable_cudnn_sdp(False)
    report_documents(device)


def shapes(seed: int) -> list[Shape]:
    """Random numbers of rows, and of tokens per row, as dynamic micro-batches have them."""
    stream = np.random.default_rng(seed)
    found: set[Shape] = set()
    while len(found) < N_SHAPES:
        rows, tokens = int(stream.integers(1, 17)), 8 * int(stream.integers(1, 513))
        if rows * tokens <= MAX_TOKENS:
            found.add((rows, tokens))
    return sorted(found, key=lambda shape: -shape[0] * shape[1])


def report(device: torch.device, way: str, of: Sequence[Shape], expected: str, holds: Any) -> None:
    """Times first and second calls of shapes, the largest first."""
    before = library_bytes(device)
    pairs = list(first_and_second(device, of))
    first, second = ([times.device_ms for times in column] for column in zip(*pairs, strict=True))
    extra_ms = median(a - b for a, b in zip(first, second, strict=True))
    note(f"{way}: shapes tried", len(pairs))
    note(f"{way}: a new shape adds ms", extra_ms, expected, holds(extra_ms))
    note(f"{way}: second calls in ms", median(second))
    note(f"{way}: libraries took bytes", library_bytes(device) - before)


def first_and_second(device: torch.device, of: Sequence[Shape]) -> Iterator[tuple[Times, Times]]:
    deadline_s = time.monotonic() + LIMIT_S
    for shape in of:
        if time.monotonic() > deadline_s:
            return
        first = once_ms(device, lambda shape=shape: call(device, shape))  # type: ignore[misc]
        second = once_ms(device, lambda shape=shape: call(device, shape))  # type: ignore[misc]
        yield first, second


def call(device: torch.device, shape: Shape) -> None:
    """Attention forward and backward, with the strides that a layer has."""
    projected = random(device, *shape, 3, HEADS, HEAD_SIZE)
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.autograd.backward(mixed, torch.ones_like(mixed))


def random(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=True)


def report_documents(device: torch.device) -> None:
    """Times the kernel for documents laid end to end, on as many tokens."""
    obstacle = flash_obstacle(device, torch.bfloat16, HEAD_SIZE)
    note("documents: why flash attention cannot run", obstacle or "it can", "it can")
    if obstacle:
        return
    lengths = np.random.default_rng(3).integers(16, 1024, 16).tolist()
    documents = Documents.from_lengths(lengths).to(device)
    query, key, value = (random(device, sum(lengths), HEADS, HEAD_SIZE) for _ in range(3))

    def work() -> None:
        mixed = packed_attention(query, key, value, queries=documents, keys=documents)
        torch.autograd.backward(mixed, torch.ones_like(mixed))

    note("documents: first call in ms", once_ms(device, work).device_ms)
    again = typical_ms(device, work)
    note(
        f"documents: {sum(lengths)} tokens in ms",
        again.device_ms,
        "< 2",
        again.device_ms < FLASH_MS,
    )
    note("documents: host ms of a call", again.host_ms)


if __name__ == "__main__":
    main()
