"""Random micro-batches in flight, up to a share of the reserved memory: does it suffice?"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.training.allocated_memory import PLANNED_SHARE, reserve
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.optimizer import Optimizer
from gpu.device import allocated_bytes, find_device, peak_bytes
from gpu.finding import note, rehearses

SHAPE = GptShape(
    n_layers=6, hidden_size=2048, n_heads=16, ffn_size=8192, vocab_size=64, max_tokens=4096
)
LIMIT_BYTES, MAX_TOKENS = 8_000_000_000, 4096
N_ITERATIONS, N_MICROBATCHES = 100, 24
if rehearses():
    SHAPE = SHAPE.model_copy(update={"hidden_size": 16, "n_heads": 2, "ffn_size": 32})
    MAX_TOKENS, N_ITERATIONS = 64, 3
SHARES = (0.6, PLANNED_SHARE, 1.0)
COUNTED = ("num_device_alloc", "num_alloc_retries", "num_ooms")


class TokenBytes(NamedTuple):
    """Memory that a token takes: between its passes, and on top while one runs."""

    stored: float
    transient: float


def main() -> None:
    device = find_device()
    stage = make_stage(device)
    per_token = token_bytes(stage, device)
    note("stored bytes per token", per_token.stored)
    stage.step_optimizer()  # its state is allocated here
    stage.finish_iteration()
    if device.type == "cuda":
        reserve(device, LIMIT_BYTES)
    free_bytes = LIMIT_BYTES - allocated_bytes(device)
    stream = np.random.default_rng(1)
    for share in SHARES:
        before = counts(device)
        for _ in range(N_ITERATIONS):
            run_iteration(stage, device, microbatches(stream), share * free_bytes, per_token)
        for name, value in counts(device).items():
            asked = value - before[name]
            is_planned = share <= PLANNED_SHARE  # beyond, the device is asked for more
            holds = asked == 0 if is_planned else None
            note(f"{share:.0%} of the limit: {name}", asked, "0" if is_planned else "", holds)
        if device.type == "cuda":
            beyond = torch.cuda.memory_reserved(device) / LIMIT_BYTES - 1
            note(f"{share:.0%} of the limit: taken beyond it", beyond)


def make_stage(device: torch.device) -> ModuleStage:
    """Two layers in the middle of a model."""
    module = family_of(SHAPE)(
        SHAPE, range(2, 4), first=False, last=False, dtype=torch.bfloat16, device=device
    )
    config = TrainingConfig(iterations=1, dtype="bfloat16")
    optimizer = Optimizer(module, config, SingleRankCollectives())
    return ModuleStage(module, without_tokens, optimizer)


def without_tokens(microbatch: MicroBatch) -> Batch:
    """Batch without tokens, as layers between embedding and head read it."""
    return Batch((microbatch.n_rows, microbatch.row_tokens))


def microbatches(stream: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Rows and tokens per row, as uneven as those of a dynamic plan."""
    for _ in range(N_MICROBATCHES):
        tokens = 8 * int(stream.integers(1, MAX_TOKENS // 8 + 1))
        yield int(stream.integers(1, MAX_TOKENS // tokens + 1)), tokens


def token_bytes(stage: ModuleStage, device: torch.device) -> TokenBytes:
    """Measured with the largest micro-batch."""
    rows = (1, MAX_TOKENS)
    forward(stage, device, 0, rows)
    backward(stage, device, 0, rows)  # libraries take their memory
    before = allocated_bytes(device)
    forward_bytes = peak_bytes(device, lambda: forward(stage, device, 0, rows))
    stored = allocated_bytes(device) - before
    backward_bytes = peak_bytes(device, lambda: backward(stage, device, 0, rows))
    transient = max(forward_bytes - stored, backward_bytes)
    return TokenBytes(stored / MAX_TOKENS, transient / MAX_TOKENS)


def run_iteration(
    stage: ModuleStage,
    device: torch.device,
    of: Iterator[tuple[int, int]],
    limit_bytes: float,
    per_token: TokenBytes,
) -> None:
    """Keeps as many micro-batches in flight as the limit allows; the oldest leaves first."""
    in_flight: deque[tuple[int, tuple[int, int]]] = deque()
    for i, rows in enumerate(of):
        while in_flight and needed([*in_flight, (i, rows)], per_token) > limit_bytes:
            backward(stage, device, *in_flight.popleft())
        forward(stage, device, i, rows)
        in_flight.append((i, rows))
    while in_flight:
        backward(stage, device, *in_flight.popleft())
    stage.step_optimizer()
    stage.finish_iteration()


def needed(of: Sequence[tuple[int, tuple[int, int]]], per_token: TokenBytes) -> float:
    """Bytes of micro-batches in flight, while the largest of them runs."""
    tokens = [n_rows * n for _, (n_rows, n) in of]
    return sum(tokens) * per_token.stored + max(tokens) * per_token.transient


def forward(stage: ModuleStage, device: torch.device, i: int, rows: tuple[int, int]) -> None:
    stage.load(i, PaddedRows((0,) * rows[0], rows[1]))
    stage.forward(i, random(device, rows))


def backward(stage: ModuleStage, device: torch.device, i: int, rows: tuple[int, int]) -> None:
    stage.backward(i, random(device, rows))


def random(device: torch.device, rows: tuple[int, int]) -> torch.Tensor:
    return torch.randn((*rows, SHAPE.hidden_size), dtype=torch.bfloat16, device=device)


def counts(device: torch.device) -> dict[str, int]:
    """Counts of requests for device memory: all, repeated and failed."""
    if device.type == "cpu":
        return dict.fromkeys(COUNTED, 0)
    stats = torch.cuda.memory_stats(device)
    return {name: int(stats[name]) for name in COUNTED}


if __name__ == "__main__":
    main()
