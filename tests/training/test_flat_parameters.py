import pytest
import torch
from torch import nn

from dynapipe_hpc.training.flat_parameters import ALIGNMENT, FlatParameters


def small_module(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 2, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_and_gradients_are_views_of_two_buffers(dtype: torch.dtype) -> None:
    module = small_module(dtype)
    before = module.weight.clone()
    flat = FlatParameters(module)
    assert torch.equal(module.weight, before)
    for _ in range(2):
        module(torch.ones(1, 3, dtype=dtype)).sum().backward()
    assert flat.gradients.dtype == torch.promote_types(dtype, torch.float32)
    assert flat.gradients[:6].tolist() == [2] * 6
    assert flat.gradients[flat.n_decaying :].tolist()[:2] == [2, 2]
    assert flat.gradients.sum() == 16
    flat.weights.fill_(7)
    assert module.bias.tolist() == [7, 7]


def test_gradients_of_16_bits_are_added_up_in_32() -> None:
    module = small_module(torch.bfloat16)
    flat = FlatParameters(module)
    for _ in range(300):  # beyond 256, one is less than half of the last bit
        module(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert flat.gradients[:6].tolist() == [300] * 6


def test_every_weight_is_where_its_view_says() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4))
    flat = FlatParameters(module, left_out=["1.bias"])
    assert [view.name for view in flat.views] == ["0.weight", "0.bias", "1.weight"]
    for view in flat.views:
        extent = slice(view.start, view.start + view.shape.numel())
        assert torch.equal(flat.weights[extent].view(view.shape), module.get_parameter(view.name))


class _HeadsNorm(nn.Module):
    """A norm with scales per head, as Cohere has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 5), 3.0))


def test_norms_do_not_decay_whatever_their_axes() -> None:
    module = nn.ModuleDict({"q": _HeadsNorm(), "maps": nn.Linear(5, 20)})
    flat = FlatParameters(module)
    assert flat.n_decaying == 2 * ALIGNMENT
    assert flat.weights[flat.n_decaying :].tolist()[:20] == [3.0] * 20
    assert not (flat.weights[: flat.n_decaying] == 3.0).any()
