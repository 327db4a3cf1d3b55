import pytest
import torch

from dynapipe_hpc.models.deferred_weights import run_backward


def test_gradients_are_those_of_torchs_backward() -> None:
    stream = torch.Generator().manual_seed(1)
    inputs, gradient = torch.randn(2, 5, 3, generator=stream)
    own, reference = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    run_backward(own.exp(), gradient)
    torch.autograd.backward(reference.exp(), gradient)
    assert own.grad is not None
    assert torch.equal(own.grad, torch.as_tensor(reference.grad))


@pytest.mark.parametrize("shape", [(3, 4), (4, 1, 3), (5, 3)])
def test_a_gradient_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    output = torch.zeros(1, 3, requires_grad=True).exp()
    with pytest.raises(ValueError, match="for output of"):
        run_backward(output, torch.ones(shape))
