import pytest
import torch

from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.optimizer import AdamW

CONFIG = TrainingConfig(iterations=6, betas=(0.8, 0.95), weight_decay=0.2)
SIZES, SKIPPED = [617, 386], 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_have_the_bits_of_torchs_optimizer(dtype: torch.dtype) -> None:
    stream = torch.Generator().manual_seed(1)
    weights = torch.randn(sum(SIZES), dtype=dtype, generator=stream)
    gradients = torch.empty_like(weights)
    own = AdamW(weights, gradients, SIZES[0], CONFIG)
    pieces = torch.split(weights.clone(), SIZES)
    reference = torch.optim.AdamW(
        [{"params": [piece], "weight_decay": d} for piece, d in zip(pieces, (0.2, 0), strict=True)],
        betas=(0.8, 0.95),
        fused=True,
    )
    for i in range(6):
        gradients.normal_(generator=stream)
        for piece, gradient in zip(pieces, torch.split(gradients, SIZES), strict=True):
            piece.grad = gradient.clone()
        own.update(0.1 / (i + 1), torch.tensor(float(i == SKIPPED)))
        for group in reference.param_groups:
            group["lr"] = 0.1 / (i + 1)
        if i != SKIPPED:
            reference.step()
        assert torch.equal(weights, torch.cat(pieces))
    assert own.n_updates == 5
    state = own.state(first=64)
    for kind, key in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
        assert state[kind].start == 64
        of_reference = torch.cat([reference.state[piece][key] for piece in pieces])
        assert torch.equal(state[kind].values, of_reference)


def test_moments_take_no_memory_before_they_are_used() -> None:
    weights, gradients = torch.zeros(2, sum(SIZES))
    with LiveMemory() as live:
        adamw = AdamW(weights, gradients, SIZES[0], CONFIG)
        assert live.live_bytes == 2 * 4  # the numbers of updates
        adamw.update(0.1, torch.zeros(()))
        assert live.live_bytes >= 2 * weights.nbytes
