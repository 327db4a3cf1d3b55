"""Times of a layer of GPT 6.7B and of its head, in bfloat16."""

from collections.abc import Callable, Mapping

import torch

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.models.attention import choose_kernels
from dynapipe_hpc.models.batch import Batch, Labels
from dynapipe_hpc.models.deferred_weights import adds_in_product
from dynapipe_hpc.models.documents import Documents
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.optimizer import Optimizer
from gpu.device import Times, find_device, peak_bytes, peak_flops_per_ms, typical_ms
from gpu.finding import note, rehearses

SHAPE = GptShape(
    n_layers=32, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
)
if rehearses():
    sizes = {"hidden_size": 32, "n_heads": 2, "ffn_size": 64, "vocab_size": 64}
    SHAPE = SHAPE.model_copy(update=sizes)
ROW_TOKENS = 256  # of padded micro-batches, and of documents in packed ones
HEAD_TOKENS = 64 if rehearses() else 8192
HEAD_BYTES, HEAD_SHARE = 1_000_000_000, 0.3
# Share of the peak by tokens in one row.
EXPECTED = {1024: 0.48, 2048: 0.55, 4096: 0.62, 8192: 0.55}
TOLERANCE = 0.15
CONFIG = TrainingConfig(iterations=1, dtype="bfloat16")
SUM_TOKENS = (1024, 4096)
TOKENS = (256, 1024) if rehearses() else (256, *EXPECTED)


def main() -> None:
    device = find_device()
    choose_kernels()
    layer = stage(device, range(1, 2))
    without_sums = {n: ms_of(device, layer, (1, n)) for n in SUM_TOKENS if n in TOKENS}
    Optimizer(layer, CONFIG, SingleRankCollectives())  # gradients now add up in float32
    for n in TOKENS:
        report_layer(device, layer, n)
    report_sums(device, layer, without_sums)
    del layer
    report_head(device)


def stage(device: torch.device, layers: range, *, last: bool = False) -> StageOfFamily:
    return family_of(SHAPE)(
        SHAPE, layers, first=False, last=last, dtype=torch.bfloat16, device=device
    )


def report_layer(device: torch.device, layer: StageOfFamily, n: int) -> None:
    """Reports times of n tokens: a row by mode of recomputation, short rows, and packed ones."""
    for mode in Recompute:
        times = ms_of(device, layer, (1, n), mode)
        name = f"layer, 1 x {n}, recompute {mode.text}"
        note(f"{name}, ms", times.device_ms)
        if mode is Recompute.NONE:
            share = flops(1, n) / times.device_ms / peak_flops_per_ms(device)
            expected = EXPECTED.get(n)
            told = "" if expected is None else f"{expected:.2f}"
            holds = None if expected is None else share > (1 - TOLERANCE) * expected
            note(f"{name}, share of peak", share, told, holds)
            note(f"{name}, host ms", times.host_ms, "< device ms", times.host_ms < times.device_ms)
    if n > ROW_TOKENS:
        rows = n // ROW_TOKENS
        padded = ms_of(device, layer, (rows, ROW_TOKENS))
        packed = typical_ms(device, passes(device, layer, (1, n), None, documents=of_rows(rows)))
        note(f"layer, {rows} x {ROW_TOKENS}, ms", padded.device_ms)
        note(f"layer, {rows} documents of {ROW_TOKENS}, ms", packed.device_ms)


def ms_of(
    device: torch.device,
    layer: StageOfFamily,
    rows: tuple[int, int],
    mode: Recompute = Recompute.NONE,
) -> Times:
    """Times of a forward and a backward pass."""
    return typical_ms(device, passes(device, layer, rows, None, mode))


def passes(
    device: torch.device,
    module: StageOfFamily,
    rows: tuple[int, int],
    labels: Labels | None,
    mode: Recompute = Recompute.NONE,
    documents: Documents | None = None,
) -> Callable[[], None]:
    """A forward and a backward pass over rows of tokens, to be called."""
    batch = Batch(rows, documents, labels=labels).to(device)
    activation = torch.randn((*rows, SHAPE.hidden_size), dtype=torch.bfloat16, device=device)
    activation.requires_grad_()

    def work() -> None:
        output = module.run(activation, batch, mode)
        torch.autograd.backward(output, torch.ones_like(output))
        activation.grad = None

    return work


def report_sums(
    device: torch.device, layer: StageOfFamily, without_sums: Mapping[int, Times]
) -> None:
    """Reports what adding gradients up in float32 takes, within products and by hooks."""
    in_products = all(adds_in_product(p) for p in layer.parameters())
    note("float32 sums are within products", str(in_products), "True", in_products)
    within = {n: ms_of(device, layer, (1, n)).device_ms for n in without_sums}
    for parameter in layer.parameters():
        vars(parameter).pop("float32_sum")  # from now on, hooks add rounded products
    for n, before in without_sums.items():
        by_hooks = ms_of(device, layer, (1, n)).device_ms
        note(f"float32 sums by hooks add, {n} tokens", by_hooks / before.device_ms - 1)
        adds = within[n] / before.device_ms - 1
        note(f"float32 sums in products add, {n} tokens", adds, "< hooks", within[n] < by_hooks)


def of_rows(n_rows: int) -> Documents:
    """Documents of equal lengths, packed into one row."""
    return Documents.from_lengths([ROW_TOKENS] * n_rows)


def flops(rows: int, tokens: int) -> float:
    """Operations of a forward and a backward pass of a layer; attention sees half of a square."""
    width = SHAPE.hidden_size
    linear = 2 * width * (4 * width + 2 * SHAPE.ffn_size)
    return 3 * rows * tokens * (linear + 2 * tokens * width)


def report_head(device: torch.device) -> None:
    """Reports time and memory of norm, logits and loss."""
    head = stage(device, range(0), last=True)
    Optimizer(head, CONFIG, SingleRankCollectives())
    rows = (1, HEAD_TOKENS)
    ids = torch.randint(0, SHAPE.vocab_size, rows)
    weights, sample_ids = torch.ones(rows, dtype=torch.float64), torch.zeros_like(ids)
    work = passes(device, head, rows, Labels(ids, weights, sample_ids))
    times = typical_ms(device, work)
    n_flops = 6 * HEAD_TOKENS * SHAPE.hidden_size * SHAPE.vocab_size
    name = f"head, {HEAD_TOKENS} tokens"
    note(f"{name}, ms", times.device_ms)
    share = n_flops / times.device_ms / peak_flops_per_ms(device)
    note(f"{name}, share of peak", share, f">= {HEAD_SHARE}", share >= HEAD_SHARE)
    n_bytes = peak_bytes(device, work)
    note(f"{name}, peak in bytes", n_bytes, f"<= {HEAD_BYTES:,}", n_bytes <= HEAD_BYTES)


if __name__ == "__main__":
    main()
