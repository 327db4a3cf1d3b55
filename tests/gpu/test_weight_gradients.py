"""Products of 16-bit matrices that a GPU adds to a float32 one."""

import pytest
import torch
from tests.gpu.no_waiting import no_waiting
from torch import Tensor, nn

from dynapipe_hpc.models.deferred_weights import DeferredWeights, adds_in_product, deferring, linear
from dynapipe_hpc.training.flat_parameters import FlatParameters

pytestmark = pytest.mark.gpu


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
