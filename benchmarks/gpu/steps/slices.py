"""Times of a layer of Llama 3 8B over one long sample, whole and in slices, in bfloat16."""

import torch

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.attention import choose_kernels
from dynapipe_hpc.models.batch import Batch
from dynapipe_hpc.models.documents import Documents, SlicedRow
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.key_value_cache import KeyValueCache
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.optimizer import Optimizer
from gpu.device import find_device, peak_bytes, typical_ms
from gpu.finding import lacks, note, rehearses
from long_tails import SHAPE as LLAMA_3_8B

WHOLE = (64, 128) if rehearses() else (1024, 4096, 8192, 16384, 32768, 65536)
SLICED = {8192: (1, 2, 4, 8), 65536: (1, 2, 4, 8, 16, 32, 64)}
if rehearses():
    SLICED = {64: (1, 2, 8), 128: (1, 8)}
SHAPE = LLAMA_3_8B
if rehearses():
    sizes = {"hidden_size": 32, "n_heads": 4, "n_kv_heads": 2, "ffn_size": 64, "vocab_size": 64}
    SHAPE = SHAPE.model_copy(update=sizes)
MAX_EXTRA = 0.1
"""Share by which eight slices of the longest sample may take longer than the whole."""


def main() -> None:
    device = find_device()
    choose_kernels()
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        lacks("a GPU on which flash attention runs")
    layer = family_of(SHAPE)(
        SHAPE, range(1, 2), first=False, last=False, dtype=torch.bfloat16, device=device
    )
    Optimizer(layer, TrainingConfig(iterations=1, dtype="bfloat16"), SingleRankCollectives())
    for n in WHOLE:
        report(device, layer, n)


def report(device: torch.device, layer: StageOfFamily, n_tokens: int) -> None:
    """Reports times and memory of a sample by its number of slices."""
    size = 1, n_tokens, SHAPE.hidden_size
    activation, gradient = (torch.randn(size, dtype=torch.bfloat16, device=device) for _ in "xy")

    def whole() -> None:
        batch = Batch((1, n_tokens)).to(device)
        output = layer.run(activation.requires_grad_(), batch, Recompute.NONE)
        torch.autograd.backward(output, gradient)
        activation.grad = None

    whole_ms = typical_ms(device, whole, 3).device_ms
    note(f"{n_tokens} tokens whole, ms", whole_ms)
    note(f"{n_tokens} tokens whole, peak in bytes", peak_bytes(device, whole))
    for n_slices in SLICED.get(n_tokens, ()):

        def sliced(n_slices: int = n_slices) -> None:
            run_slices(layer, activation, gradient, n_slices)

        times = typical_ms(device, sliced, 3)
        name = f"{n_tokens} tokens in {n_slices} slices"
        is_limited = n_slices == 8 and n_tokens == WHOLE[-1]
        extra = times.device_ms / whole_ms - 1
        told, holds = (f"< {MAX_EXTRA}", extra < MAX_EXTRA) if is_limited else ("", None)
        note(f"{name}, ms more than whole", extra, told, holds)
        note(f"{name}, host ms", times.host_ms)
        note(f"{name}, peak in bytes", peak_bytes(device, sliced))


def run_slices(
    layer: StageOfFamily, activation: torch.Tensor, gradient: torch.Tensor, n_slices: int
) -> None:
    """All forward passes, first slice first, and then all backward passes, last slice first."""
    n_tokens = activation.shape[1]
    cache, length = KeyValueCache(n_tokens), n_tokens // n_slices
    outputs = []
    for begin in range(0, n_tokens, length):
        documents = Documents.from_lengths([length])
        row = SlicedRow.from_documents(documents, begin)
        batch = Batch((1, length), row, kv_cache=cache).to(activation.device)
        received = activation.detach()[:, begin : begin + length].clone().requires_grad_()
        outputs.append(layer.run(received, batch, Recompute.NONE))
    for k in reversed(range(n_slices)):
        towards = gradient[:, k * length : (k + 1) * length]
        torch.autograd.backward(outputs.pop(), towards.contiguous())


if __name__ == "__main__":
    main()
