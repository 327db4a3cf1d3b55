"""Tests that need a GPU; without one they are skipped, whatever is asked for."""

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none")
    return torch.device("cuda", torch.cuda.current_device())
